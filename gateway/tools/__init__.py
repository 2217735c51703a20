"""Tool calls: what a request may ask for, how each model family writes a call, and how its text is read back."""

"""Answers already paid for: exact and semantic. (The KV cache is the engine's, not here.) No HTTP."""

"""What can go wrong before Weir serves: one error type that the command line prints without a traceback."""

from __future__ import annotations


class StartupError(Exception):
    """Weir cannot start; the message names the thing, the value and what to do about it."""

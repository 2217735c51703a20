"""The engine's own errors; `gateway/pipeline.py` translates them to HTTP at one place.

EngineError
├── InvalidRequest       the request can never run (over-long prompt, id out of vocabulary): caller's fault, 400
├── QueueFull            the waiting queue is at its limit: 429/503 with `retry_after_s`
├── RequestFailed        this request failed inside (NaN logits, grammar error); the others go on: 500
├── EngineUnavailable    the engine is starting, hung or dead: 503
└── ModelLoadError       an unknown architecture, a missing or misshapen tensor, too little memory: start-up fails
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of everything the engine raises on purpose."""


class InvalidRequest(EngineError, ValueError):
    """The request can never run. `param` names the offending field, `code` is OpenAI's error code where one fits."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class QueueFull(EngineError):
    """The waiting queue is full. `retry_after_s` estimates when a place will be free."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RequestFailed(EngineError):
    """One request failed inside the engine; its neighbours are unharmed."""


class EngineUnavailable(EngineError):
    """The engine is starting, hung or dead."""


class ModelLoadError(EngineError):
    """The checkpoint cannot be served: the message names the file, the tensor and the shape or key."""

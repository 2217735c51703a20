"""The cache's own errors. A lookup never raises them at a caller: trouble is a miss with a reason.

CacheError
├── InvalidCacheControl   a request's cache-control or threshold cannot be read: the caller's fault, 400
├── UncacheableRequest    the body has no canonical form (NaN, nested too deep): treated as a bypass
├── EmbedderUnavailable   the embedder's worker is starting, gone or too busy: a semantic miss
│   └── EmbedderNotStarted    it did not start in time: worth another try, as a model that does not load is not
└── LeaderFailed          the generation this request was following failed: generate on your own
"""

from __future__ import annotations


class CacheError(Exception):
    """Base of everything the cache raises on purpose."""


class InvalidCacheControl(CacheError, ValueError):
    """A request's cache control cannot be read. `param` names the header or field."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.param = param


class UncacheableRequest(CacheError, ValueError):
    """The request's body has no canonical form, so it can have no key."""


class EmbedderUnavailable(CacheError):
    """The embedder's worker is starting, gone or too busy; the message says which."""


class EmbedderNotStarted(EmbedderUnavailable):
    """The embedder's worker did not start in time, or died of it. Nothing says that the next one will too."""


class LeaderFailed(CacheError):
    """The generation being followed failed or its gateway died.

    `delivered` events had already been handed to this follower: 0 means that it can be retried invisibly.
    """

    def __init__(self, message: str, *, delivered: int) -> None:
        super().__init__(message)
        self.delivered = delivered

"""What a lookup came to and why: the words of the `x-weir-cache` header and the metrics."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """`HIT`: the same request was answered before; `SEMANTIC`: a paraphrase was; `BYPASS`: the cache was not asked."""

    HIT = "hit"
    SEMANTIC = "semantic"
    MISS = "miss"
    BYPASS = "bypass"


class Reason(StrEnum):
    """Why an outcome came about. One word each: it is a metric label and stands in a header."""

    NONE = "none"
    # bypass: the policy or the caller
    DISABLED = "disabled"
    NO_CACHE = "no-cache"
    NO_STORE = "no-store"
    UNKEYABLE = "unkeyable"
    # bypass: the answer would not be the same again
    TOOLS = "tools"
    RETRIEVAL = "retrieval"
    LIVE = "live"
    PERSONAL = "personal"
    TEMPERATURE = "temperature"
    # miss: exact
    ABSENT = "absent"
    EXPIRED = "expired"
    MAX_AGE = "max-age"
    # miss: semantic was not tried
    EXACT_ONLY = "exact-only"
    LANGUAGE = "language"
    LENGTH = "length"
    EMBEDDER = "embedder"
    LOADING = "loading"
    # miss: semantic was tried
    SIMILARITY = "similarity"
    GUARD = "guard"
    RERANKER = "reranker"
    # miss: trouble
    DEADLINE = "deadline"
    STORE = "store"
    # hit: shared with a generation that was running
    FLIGHT = "flight"


class NotStored(StrEnum):
    """Why an answer was not remembered."""

    BYPASS = "bypass"
    TRUNCATED = "truncated"
    ERRORED = "errored"
    FILTERED = "filtered"
    INCOMPLETE = "incomplete"
    TOOL_CALLS = "tool-calls"
    EMPTY = "empty"
    OVER_LONG = "over-long"
    STORE = "store"

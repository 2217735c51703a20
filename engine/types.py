"""What crosses the engine's border: requests in, deltas out. msgspec structs, no torch, safe to send over a socket."""

from __future__ import annotations

import builtins
from enum import IntEnum, StrEnum

import msgspec

MAX_STOP_STRINGS = 16


class FinishReason(StrEnum):
    """Why a sequence ended. `STOP`: eos, a stop id or a stop string; `LENGTH`: max_tokens or the context's end."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Priority(IntEnum):
    """Smaller runs first; a smaller class preempts a larger one when slots or pages are short."""

    INTERACTIVE = 0
    STANDARD = 1
    BATCH = 2


class Unstopped(msgspec.Struct, frozen=True):
    """The part of an output in which stop strings do not count, a model's reasoning.

    It stands at the very beginning, from `open` (white space before it is allowed; `is_open`: the prompt ended inside
    it already) to the first `close` and the white space behind that.
    """

    open: str
    close: str
    is_open: bool = False


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to choose the next tokens. Defaults are OpenAI's; `engine.validation` checks the bounds before the queue.

    `temperature` 0 is greedy. `top_k` 0 or -1 and `min_p` 0 are off. `logprobs`: None is off, k gives the chosen
    token's and the k most likely ones' raw log-probabilities (natural log, before temperature and penalties).
    `logit_bias` maps token id to a value added to its logit. `grammar` is a serialised llguidance grammar.
    """

    n: int = 1
    best_of: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    unstopped: Unstopped | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: str | None = None


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt for the engine.

    `cache_salt` goes into the first block's prefix hash: HMAC over tenant and project, made by the server, never by a
    caller. `tenant` is the fairness key (opaque to the engine), `weight` its share within a priority class.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    cache_salt: bytes
    tenant: str = ""
    weight: float = 1.0
    priority: Priority = Priority.STANDARD


class TokenLogprob(msgspec.Struct, frozen=True):
    """One token with its raw log-probability (natural log). `text` may hold U+FFFD; `bytes` are exact."""

    token_id: int
    text: str
    bytes: builtins.bytes  # the plain name would be this very field when the hints are resolved
    logprob: float
    rank: int | None = None
    top: tuple[TokenLogprob, ...] = ()


class Delta(msgspec.Struct, kw_only=True):
    """What one sequence of a request made since its last delta.

    `index` is the sequence's number among `n`. `text` is complete UTF-8 whose stop-string prefixes are held back, so
    it may be empty while `token_ids` is not. `completion_tokens` counts this sequence's tokens so far (eos and stop
    ids included); `prompt_tokens` and `cached_tokens` are the request's. `engine_us`, on the request's very last
    delta, is the request's share of engine wall time in microseconds.
    """

    index: int
    text: str
    token_ids: list[int]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    engine_us: int = 0
    last: bool = False


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway needs to know of a loaded model. `path` holds tokenizer.json and the chat template.

    `revision` is a digest over weights and config: it is part of every cache key. `logits_width` bounds token ids.
    """

    name: str
    path: str
    revision: str
    architecture: str
    max_model_len: int
    vocab_size: int
    logits_width: int
    dtype: str
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    num_parameters: int


class EngineStats(msgspec.Struct, kw_only=True):
    """One reading of the engine's gauges and counters; counters only grow between restarts.

    num_drafts: times a sequence brought drafts to a step; num_draft_tokens, num_accepted_tokens: how many, and how many
    of them held.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_preemptions: int = 0
    kv_blocks_total: int = 0
    kv_blocks_free: int = 0
    kv_blocks_cached: int = 0
    kv_blocks_referenced: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_steps: int = 0
    busy_us: int = 0
    idle_us: int = 0
    finished: dict[str, int] = {}


class EngineHealth(msgspec.Struct, kw_only=True):
    """`status`: starting, ready, draining, hung or dead. `last_step_age_s`: seconds since the step under
    way last came further, 0 when idle."""

    status: str
    detail: str = ""
    last_step_age_s: float = 0.0

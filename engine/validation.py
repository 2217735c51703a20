"""Bounds of a request, checked before the queue: what passes here can run to its end. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from engine.errors import InvalidRequest
from engine.types import MAX_STOP_STRINGS, EngineRequest, SamplingParams

MAX_SEQUENCES = 128
MIN_REPETITION_PENALTY = 0.01  # logits are divided by it: far below this they leave float32
MAX_STOP_BYTES = 4096
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 1024
MAX_GRAMMAR_BYTES = 96 << 10  # llguidance compiles about 50 kB a second on one slow core
MAX_REQUEST_ID = 256


@dataclass(frozen=True)
class RequestLimits:
    """What one engine can run. `max_sequence_tokens`: the longest sequence whose pages fit the pool alone."""

    max_model_len: int
    vocab_size: int
    max_sequence_tokens: int
    max_logprobs: int
    max_n: int = MAX_SEQUENCES


def validate_request(request: EngineRequest, limits: RequestLimits) -> int:
    """Returns max_tokens, clamped to the context and to the pages. Raises: InvalidRequest naming the parameter."""
    if not request.request_id or len(request.request_id) > MAX_REQUEST_ID:
        raise InvalidRequest(f"request_id must have 1 to {MAX_REQUEST_ID} characters", param="request_id")
    if not request.cache_salt:
        raise InvalidRequest("cache_salt must not be empty", param="cache_salt")
    if not math.isfinite(request.weight) or request.weight <= 0:
        raise InvalidRequest(f"weight must be a finite number above 0, got {request.weight}", param="weight")
    validate_sampling(request.sampling, limits)
    return _max_tokens(request, limits)


def _max_tokens(request: EngineRequest, limits: RequestLimits) -> int:
    length = len(request.prompt_token_ids)
    if not length:
        raise InvalidRequest("the prompt must hold at least one token", param="prompt")
    # One slot must stay for an output token.
    longest = min(limits.max_model_len, limits.max_sequence_tokens + 1) - 1
    if length > longest:
        raise InvalidRequest(
            f"the prompt has {length} tokens, at most {longest} fit the context of {limits.max_model_len} tokens",
            param="prompt",
            code="context_length_exceeded",
        )
    if min(request.prompt_token_ids) < 0 or max(request.prompt_token_ids) >= limits.vocab_size:
        bad = next(t for t in request.prompt_token_ids if not 0 <= t < limits.vocab_size)
        raise InvalidRequest(f"token id {bad} is outside the vocabulary of {limits.vocab_size}", param="prompt")
    room = longest + 1 - length
    wanted = request.sampling.max_tokens
    return room if wanted is None else min(wanted, room)


def validate_sampling(sampling: SamplingParams, limits: RequestLimits) -> None:
    """Raises: InvalidRequest."""
    _between("n", sampling.n, 1, limits.max_n)
    if sampling.best_of is not None:
        _between("best_of", sampling.best_of, sampling.n, limits.max_n)
    _between("temperature", sampling.temperature, 0, 100)
    _between("top_p", sampling.top_p, 0, 1, above=True)
    _between("min_p", sampling.min_p, 0, 1)
    _between("top_k", sampling.top_k, -1, 1 << 31)
    _between("repetition_penalty", sampling.repetition_penalty, MIN_REPETITION_PENALTY, 100)
    _between("presence_penalty", sampling.presence_penalty, -2, 2)
    _between("frequency_penalty", sampling.frequency_penalty, -2, 2)
    if sampling.max_tokens is not None:
        _between("max_tokens", sampling.max_tokens, 1, 1 << 31)
    _between("min_tokens", sampling.min_tokens, 0, sampling.max_tokens or limits.max_model_len)
    for name, value in (("logprobs", sampling.logprobs), ("prompt_logprobs", sampling.prompt_logprobs)):
        if value is not None:
            _between(name, value, 0, limits.max_logprobs)
    if sampling.seed is not None:
        _between("seed", sampling.seed, -(1 << 63), (1 << 63) - 1)
    _validate_stops(sampling, limits)
    for token_id, bias in (sampling.logit_bias or {}).items():
        _between(f"logit_bias[{token_id}]", bias, -100, 100)
        _token_id("logit_bias", token_id, limits)
    if len(sampling.logit_bias or {}) > MAX_LOGIT_BIAS:
        raise InvalidRequest(f"logit_bias holds more than {MAX_LOGIT_BIAS} tokens", param="logit_bias")
    if sampling.grammar is not None and len(sampling.grammar.encode()) > MAX_GRAMMAR_BYTES:
        raise InvalidRequest(f"grammar is longer than {MAX_GRAMMAR_BYTES} bytes", param="grammar")


def _validate_stops(sampling: SamplingParams, limits: RequestLimits) -> None:
    if len(sampling.stop) > MAX_STOP_STRINGS:
        raise InvalidRequest(f"stop holds {len(sampling.stop)} strings, at most {MAX_STOP_STRINGS}", param="stop")
    if any(not text for text in sampling.stop):
        raise InvalidRequest("stop holds an empty string", param="stop")
    if sum(len(text.encode()) for text in sampling.stop) > MAX_STOP_BYTES:
        raise InvalidRequest(f"stop holds more than {MAX_STOP_BYTES} bytes", param="stop")
    if len(sampling.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(f"stop_token_ids holds more than {MAX_STOP_TOKEN_IDS} ids", param="stop_token_ids")
    for token_id in sampling.stop_token_ids:
        _token_id("stop_token_ids", token_id, limits)


def _between(name: str, value: Any, low: float, high: float, *, above: bool = False) -> None:
    """NaN fails every comparison, so it is refused too."""
    if not (low < value <= high if above else low <= value <= high):
        bound = f"above {low}" if above else f"at least {low}"
        raise InvalidRequest(f"{name} must be {bound} and at most {high}, got {value}", param=name.split("[", 1)[0])


def _token_id(name: str, token_id: int, limits: RequestLimits) -> None:
    if not 0 <= token_id < limits.vocab_size:
        raise InvalidRequest(
            f"{name}: token id {token_id} is outside the vocabulary of {limits.vocab_size}", param=name
        )

"""Every bound of a request is checked before the queue, and names parameter, value and limit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.errors import InvalidRequest
from engine.types import EngineRequest, SamplingParams
from engine.validation import MAX_GRAMMAR_BYTES, RequestLimits, validate_request

LIMITS = RequestLimits(max_model_len=100, vocab_size=50, max_sequence_tokens=1000, max_logprobs=5)


def _request(ids: list[int] | None = None, **sampling: Any) -> EngineRequest:
    return EngineRequest(
        request_id="r",
        prompt_token_ids=[1, 2, 3] if ids is None else ids,
        sampling=SamplingParams(**sampling),
        cache_salt=b"salt",
    )


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-38}, "repetition_penalty"),
        ({"repetition_penalty": 0.0099}, "repetition_penalty"),
        ({"repetition_penalty": 100.1}, "repetition_penalty"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty"),
        ({"top_p": float("nan")}, "top_p"),
        ({"min_p": float("nan")}, "min_p"),
        ({"presence_penalty": float("-inf")}, "presence_penalty"),
        ({"logit_bias": {1: float("inf")}}, "logit_bias"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 4, "min_tokens": 5}, "min_tokens"),
        ({"logprobs": 6}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"seed": 1 << 63}, "seed"),
        ({"stop": ("",)}, "stop"),
        ({"stop": ("x",) * 17}, "stop"),
        ({"stop": ("x" * 5000,)}, "stop"),
        ({"stop_token_ids": (50,)}, "stop_token_ids"),
        ({"stop_token_ids": (1,) * 129}, "stop_token_ids"),
        ({"logit_bias": {50: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: 101.0}}, "logit_bias"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias"),
        ({"grammar": "x" * (MAX_GRAMMAR_BYTES + 1)}, "grammar"),
    ],
    ids=str,
)
def test_a_parameter_out_of_bounds_is_named(sampling: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        validate_request(_request(**sampling), LIMITS)
    assert refused.value.param == param
    assert param in str(refused.value)


@pytest.mark.parametrize("ids", [[], [50], [-1], [1] * 100], ids=["empty", "above", "below", "too long"])
def test_a_prompt_that_can_never_run_is_refused(ids: list[int]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        validate_request(_request(ids), LIMITS)
    assert refused.value.param == "prompt"
    assert (refused.value.code == "context_length_exceeded") is (len(ids) == 100)


def test_max_tokens_is_clamped_to_the_context_and_to_the_pages() -> None:
    assert validate_request(_request(), LIMITS) == 97
    assert validate_request(_request(max_tokens=5), LIMITS) == 5
    assert validate_request(_request(max_tokens=500), LIMITS) == 97
    assert validate_request(_request([1] * 99), LIMITS) == 1
    small = RequestLimits(100, 50, 20, 5)
    assert validate_request(_request(), small) == 18  # 3 + 17 in pages, the last is never stored


@pytest.mark.parametrize("change", [{"cache_salt": b""}, {"weight": 0.0}, {"weight": float("nan")}, {"request_id": ""}])
def test_what_the_server_must_set_is_checked_too(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(change))):
        validate_request(msgspec.structs.replace(_request(), **change), LIMITS)


def test_a_repetition_penalty_that_would_overflow_is_refused_with_its_value_and_bounds() -> None:
    with pytest.raises(InvalidRequest) as refused:
        validate_request(_request(repetition_penalty=1e-38), LIMITS)
    assert str(refused.value) == "repetition_penalty must be at least 0.01 and at most 100, got 1e-38"
    assert validate_request(_request(repetition_penalty=0.01), LIMITS) == 97
    assert validate_request(_request(repetition_penalty=100.0), LIMITS) == 97

"""What crosses the child's socket comes back as it was."""

from __future__ import annotations

import asyncio

import pytest

from engine.core_output import CoreOutput, TokenScore
from engine.errors import EngineError, EngineUnavailable, InvalidRequest, QueueFull, RequestFailed
from engine.types import EngineRequest, FinishReason, SamplingParams
from engine.wire import MAX_FRAME_BYTES, Generate, Outputs, Refused, frame, read_from_engine, read_to_engine


def _reader(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return reader


async def test_requests_and_outputs_round_trip() -> None:
    request = EngineRequest(
        request_id="r",
        prompt_token_ids=[1, 2],
        sampling=SamplingParams(temperature=0.5, stop=("a",), logit_bias={3: -1.0}, grammar="g"),
        cache_salt=b"\x00\xff",
        tenant="t",
    )
    assert await read_to_engine(_reader(frame(Generate(request)))) == Generate(request)
    output = CoreOutput(
        request_id="r",
        index=1,
        token_ids=[5],
        prompt_tokens=2,
        cached_tokens=0,
        scores=[TokenScore(5, -0.5, 1, (5, 6), (-0.5, -1.0))],
        finish_reason=FinishReason.STOP,
        engine_us=7,
    )
    assert await read_from_engine(_reader(frame(Outputs([output])))) == Outputs([output])


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("m", param="p", code="c"),
        QueueFull("m", retry_after_s=3.5),
        RequestFailed("m"),
        EngineUnavailable("m"),
    ],
)
async def test_refusals_keep_their_class_and_fields(error: EngineError) -> None:
    message = await read_from_engine(_reader(frame(Refused.of("r", error))))
    assert isinstance(message, Refused)
    again = message.error()
    assert type(again) is type(error)
    assert str(again) == "m"
    assert vars(again) == vars(error)


async def test_an_oversized_or_broken_frame_is_refused_before_it_is_read() -> None:
    with pytest.raises(ValueError, match="over the limit"):
        await read_to_engine(_reader((MAX_FRAME_BYTES + 1).to_bytes(4, "little")))
    with pytest.raises(ValueError, match="Expected"):
        await read_to_engine(_reader(b"\x01\x00\x00\x00\x05"))
    with pytest.raises(asyncio.IncompleteReadError):
        await read_to_engine(_reader(b"\x05\x00\x00\x00ab"))

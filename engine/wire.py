"""What a gateway worker and the child engine say to each other: length-framed msgpack of tagged structs."""

from __future__ import annotations

import asyncio

import msgspec

from engine.core_output import CoreOutput
from engine.errors import EngineError, EngineUnavailable, InvalidRequest, QueueFull, RequestFailed
from engine.types import EngineHealth, EngineRequest, EngineStats, ModelInfo

# A 128k-token prompt is about 0.6 MB; a frame beyond this is not from a Weir.
MAX_FRAME_BYTES = 64 << 20
_LENGTH_BYTES = 4


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    request: EngineRequest


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    request_id: str


class StopSequence(msgspec.Struct, frozen=True, tag="stop"):
    request_id: str
    index: int


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Asks for a `Report`; `number` comes back in it."""

    number: int


ToEngine = Generate | Abort | StopSequence | Ask


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The first message of every connection, once the model is loaded."""

    model: ModelInfo


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A request that was never queued. `kind` names the error class."""

    request_id: str
    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after_s: float = 0.0

    @classmethod
    def of(cls, request_id: str, error: EngineError) -> Refused:
        return cls(
            request_id,
            type(error).__name__,
            str(error),
            getattr(error, "param", None),
            getattr(error, "code", None),
            getattr(error, "retry_after_s", 0.0),
        )

    def error(self) -> EngineError:
        """The error as the engine raised it."""
        if self.kind == "InvalidRequest":
            return InvalidRequest(self.message, param=self.param, code=self.code)
        if self.kind == "QueueFull":
            return QueueFull(self.message, retry_after_s=self.retry_after_s)
        return RequestFailed(self.message) if self.kind == "RequestFailed" else EngineUnavailable(self.message)


class Outputs(msgspec.Struct, frozen=True, tag="outputs"):
    outputs: list[CoreOutput]


class Report(msgspec.Struct, frozen=True, tag="report"):
    number: int
    stats: EngineStats
    health: EngineHealth


FromEngine = Ready | Refused | Outputs | Report

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_from_engine = msgspec.msgpack.Decoder(FromEngine)


def frame(message: ToEngine | FromEngine) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


async def read_to_engine(reader: asyncio.StreamReader) -> ToEngine:
    """Raises: IncompleteReadError at the end; ValueError for what is no message."""
    return _to_engine.decode(await _body(reader))


async def read_from_engine(reader: asyncio.StreamReader) -> FromEngine:
    """Raises: IncompleteReadError at the end; ValueError for what is no message."""
    return _from_engine.decode(await _body(reader))


async def _body(reader: asyncio.StreamReader) -> bytes:
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "little")
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
    return await reader.readexactly(length)

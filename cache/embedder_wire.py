"""What crosses the pipe between a gateway and its embedder process: msgpack frames after a 4-byte length."""

from __future__ import annotations

import msgspec

MAX_FRAME_BYTES = 64 * 1024 * 1024  # 2,048 texts of 32 KiB


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The child's first frame: the model is loaded."""

    dims: int


class Batch(msgspec.Struct, frozen=True, tag="batch"):
    """Texts to embed."""

    number: int
    texts: list[str]


class Result(msgspec.Struct, frozen=True, tag="result"):
    """(n * dims) float32 as bytes, a token count and flag bits (1 truncated, 2 unknown) for each text."""

    number: int
    vectors: bytes
    num_tokens: list[int]
    flags: list[int]


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """Loading (number -1) or one batch failed."""

    number: int
    message: str


_encoder = msgspec.msgpack.Encoder()
_from_child: msgspec.msgpack.Decoder[Hello | Result | Failure] = msgspec.msgpack.Decoder(Hello | Result | Failure)
_to_child = msgspec.msgpack.Decoder(Batch)


def frame(message: Hello | Batch | Result | Failure) -> bytes:
    """Raises: ValueError beyond 64 MiB."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return len(body).to_bytes(4, "little") + body


def frame_length(header: bytes) -> int:
    """Raises: ValueError beyond 64 MiB."""
    length = int.from_bytes(header, "little")
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
    return length


def decode_from_child(body: bytes) -> Hello | Result | Failure:
    """Raises: msgspec.DecodeError."""
    return _from_child.decode(body)


def decode_to_child(body: bytes) -> Batch:
    """Raises: msgspec.DecodeError."""
    return _to_child.decode(body)

"""One byte string for one meaning: canonical JSON and length-framed digests.

Framing: without lengths ("org_1", "2345") and ("org_12345", "") would be one string, and so one cache.
"""

from __future__ import annotations

import hashlib
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from cache.errors import UncacheableRequest

MAX_DEPTH = 64  # a JSON schema of a tool rarely passes 12

_encoder = msgspec.json.Encoder(order="deterministic")
_PLAIN = frozenset({str, int, bool, type(None)})


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys in which 1 and 1.0 are the same number.

    Raises: UncacheableRequest on NaN, infinities, lone surrogates, keys that are not strings, over 64 levels.
    """
    try:
        return _encoder.encode(_normalised(value, 0))
    except (UnicodeEncodeError, TypeError) as exc:
        raise UncacheableRequest(f"the request has no canonical JSON form: {exc}") from exc


def _normalised(value: Any, depth: int) -> Any:
    if value.__class__ in _PLAIN:  # nearly every value; asking for a Mapping costs ten times as much
        return value
    if depth > MAX_DEPTH:
        raise UncacheableRequest(f"the request is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UncacheableRequest(f"{value} is not a JSON number")
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise UncacheableRequest("a JSON object's keys must be strings")
        return {key: _normalised(item, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_normalised(item, depth + 1) for item in value]
    return value


def framed_digest(fields: Iterable[bytes | str]) -> str:
    """SHA-256 (64 hex digits) over fields each preceded by its length in bytes as 8 bytes big-endian."""
    framed: list[bytes] = []
    for field in fields:
        raw = field.encode("utf-8", "surrogatepass") if isinstance(field, str) else field
        framed += (len(raw).to_bytes(8, "big"), raw)
    return hashlib.sha256(b"".join(framed)).hexdigest()


# Full-width forms of ASCII (！ to ～), as Chinese and Japanese keyboards type them, and the ideographic space.
_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}


def normalised_text(text: str) -> str:
    """The text as the exact cache compares it: NFC, half-width forms, one kind of line end, trimmed.

    Runs of blanks are folded only within one line of prose: in several lines or code (a backtick) they may be meant.
    Letter case stays: "US" is not "us". NFKC is not used, as it makes "x²" "x2".
    """
    folded = unicodedata.normalize("NFC", text).translate(_FULL_WIDTH).replace("\r\n", "\n").strip()
    if "\n" in folded or "`" in folded:
        return folded
    return " ".join(folded.split())


END_CHARS = 600


def both_ends(text: str) -> str:
    """A long text's first and last 600 characters, where the question stands; a short one whole.

    What reads wording by patterns reads no more than this: a pasted document is no question, and some patterns take
    time that grows with the square of the length (a megabyte of "is" would stop the event loop for minutes).
    """
    return text if len(text) <= 2 * END_CHARS else f"{text[:END_CHARS]}\n{text[-END_CHARS:]}"

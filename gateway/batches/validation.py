"""The lines of a batch's input file, checked before any is run: OpenAI fails the whole batch for one bad line."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from gateway.decoding import check_depth
from gateway.errors import MalformedBody, clip
from gateway.schemas.batches import InputLine, LineError

MAX_LINES = 50_000
MAX_LINE_BYTES = 4 << 20
MAX_ERRORS = 100


class Checked(msgspec.Struct):
    """What came of one line: the request, or what is wrong with it."""

    number: int
    line: InputLine | None = None
    error: LineError | None = None


class LineChecker:
    """Checks lines one after the other; ids must differ within a file."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._ids: set[str] = set()

    async def check(self, lines: AsyncIterator[bytes]) -> AsyncIterator[Checked]:
        """Every line with its number from 1; ends behind MAX_LINES with an error."""
        number = 0
        async for raw in lines:
            number += 1
            if number > MAX_LINES:
                yield _wrong(number, "too_many_tasks", f"The file has more than {MAX_LINES} lines.")
                return
            yield self._checked(number, raw)
        if number == 0:
            yield _wrong(None, "empty_file", "The input file has no lines.")

    def _checked(self, number: int, raw: bytes) -> Checked:
        if len(raw) > MAX_LINE_BYTES:
            return _wrong(number, "line_too_large", f"This line is longer than {MAX_LINE_BYTES} bytes.")
        try:
            check_depth(raw)
            line = msgspec.json.decode(raw, type=InputLine)
        except msgspec.ValidationError as exc:
            return _wrong(number, "invalid_request", clip(str(exc)))
        except (msgspec.DecodeError, MalformedBody, RecursionError, UnicodeError):
            return _wrong(number, "invalid_json_line", "This line is not parseable as valid JSON.")
        if line.url != self._endpoint:
            return _wrong(
                number,
                "invalid_url",
                f"The URL provided for this request does not match the batch's endpoint '{self._endpoint}'.",
                param="url",
            )
        if line.custom_id in self._ids:
            return _wrong(
                number, "duplicate_custom_id", "The custom_id of this request is another's too.", param="custom_id"
            )
        self._ids.add(line.custom_id)
        return Checked(number, line=line)


def _wrong(number: int | None, code: str, message: str, *, param: str | None = None) -> Checked:
    return Checked(number or 0, error=LineError(code=code, message=message, param=param, line=number))

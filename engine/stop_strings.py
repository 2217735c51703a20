"""`StopFinder`: stop strings in a stream of text pieces, across any borders between the pieces.

`AnswerStopFinder` looks for them in the answer behind a model's reasoning only.

A character leaves only when no stop string can begin with it any more, so nothing of a stop text is ever sent early.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from engine.types import Unstopped


class StopFinder:
    """Args: stops, none of them empty; include: whether the stop text itself belongs to the output."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.found: str | None = None

    def push(self, piece: str, *, counts: bool = True) -> str:
        """The text that may leave now. After a hit `found` is the stop string and nothing more leaves.

        Of several stop strings the one whose text is complete first wins; of those that end together, the longest.
        A piece that does not count passes by, with what was held back before it.
        """
        if not counts:
            return self.flush() + piece
        if self.found is not None:
            return ""
        if not self._stops:
            return piece
        text = self._held + piece
        hit = self._first_hit(text)
        if hit is not None:
            start, stop = hit
            self.found, self._held = stop, ""
            return text[: start + len(stop) if self._include else start]
        keep = self._possible_start(text)
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """What was held back, at the end of the stream."""
        held, self._held = self._held, ""
        return held

    def _first_hit(self, text: str) -> tuple[int, str] | None:
        hits = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if not hits:
            return None
        _, start, stop = min(hits)  # the earliest end; of equal ends the earliest start, which is the longest
        return start, stop

    def _possible_start(self, text: str) -> int:
        """The first index from which the text's end could be the beginning of a stop string."""
        longest = max(map(len, self._stops)) - 1
        for start in range(max(0, len(text) - longest), len(text)):
            tail = text[start:]
            if any(stop.startswith(tail) for stop in self._stops):
                return start
        return len(text)


class _Where(Enum):
    LEAD = "lead"  # nothing but white space and the beginning of the opening tag so far
    REASONING = "reasoning"
    TRAIL = "trail"  # white space behind the closing tag
    ANSWER = "answer"


class AnswerStopFinder(StopFinder):
    """A StopFinder that only looks at what stands behind `unstopped`, or at everything where that does not come."""

    def __init__(self, stops: Sequence[str], unstopped: Unstopped, *, include: bool = False) -> None:
        super().__init__(stops, include=include)
        self._tags = unstopped
        self._where = _Where.REASONING if unstopped.is_open else _Where.LEAD
        self._seen = ""  # the lead so far, or the reasoning's end that may be the closing tag's beginning

    def push(self, piece: str, *, counts: bool = True) -> str:
        if self._where is _Where.LEAD:
            piece = self._lead(piece)
        passed = ""
        if self._where is _Where.REASONING:
            passed, piece = self._reasoning(piece)
        if self._where is _Where.TRAIL:
            answer = piece.lstrip()
            passed += piece[: len(piece) - len(answer)]
            piece = answer
            if answer:
                self._where = _Where.ANSWER
        return passed + super().push(piece, counts=counts) if self._where is _Where.ANSWER else passed

    def flush(self) -> str:
        if self._where is not _Where.LEAD:
            return super().flush()
        lead, self._seen = self._seen, ""
        return super().push(lead) + super().flush()

    def _lead(self, piece: str) -> str:
        """All of it once it is known whether reasoning begins here; until then it is held."""
        self._seen += piece
        text = self._seen.lstrip()
        if self._tags.open.startswith(text) and text != self._tags.open:
            return ""
        lead, self._seen = self._seen, ""
        self._where = _Where.REASONING if text.startswith(self._tags.open) else _Where.ANSWER
        return lead

    def _reasoning(self, piece: str) -> tuple[str, str]:
        """What of the piece belongs to the reasoning with its closing tag, and what stands behind."""
        text = self._seen + piece
        end = text.find(self._tags.close)
        if end < 0:
            self._seen = text[-(len(self._tags.close) - 1) :]
            return piece, ""
        self._where = _Where.TRAIL
        behind = text[end + len(self._tags.close) :]
        return piece[: len(piece) - len(behind)], behind

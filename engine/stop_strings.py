"""`StopFinder`: stop strings in a stream of text pieces, across any borders between the pieces.

A character leaves only when no stop string can begin with it any more, so nothing of a stop text is ever sent early.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    """Args: stops, none of them empty; include: whether the stop text itself belongs to the output."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.found: str | None = None

    def push(self, piece: str) -> str:
        """The text that may leave now. After a hit `found` is the stop string and nothing more leaves.

        Of several stop strings the one whose text is complete first wins; of those that end together, the longest.
        """
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

"""A stream goes on where another's generation broke off: the answer is generated again, and what its client has seen
already is left out, as long as the second generation says the very same.

Only a request that makes the same text each time is worth the try: greedy, or with a seed. Whatever the engine
promises, every character is compared; where the second generation says otherwise, the stream ends with an error, for a
client must not get an answer sewn together of two.
"""

from __future__ import annotations

import msgspec

from gateway.calls import Call, Piece


class Diverged(Exception):
    """The second generation does not begin with what was shown."""


class Shown:
    """What a stream's client has seen, by choice; then how much of it a second generation has repeated."""

    def __init__(self) -> None:
        self._choices: dict[int, _Choice] = {}
        self._only_text = True

    def add(self, pieces: list[Piece]) -> None:
        """Takes note of what is sent."""
        for piece in pieces:
            if piece.tool_calls or piece.logprobs:
                self._only_text = False
            choice = self._choices.setdefault(piece.index, _Choice())
            choice.reasoning += piece.reasoning
            choice.text += piece.text

    def can_go_on(self, call: Call) -> bool:
        """Nothing was shown, or text that `call` makes the same again. Tool calls have ids of their own, and
        log-probabilities belong to tokens: neither is sewn on."""
        nothing = self._only_text and not any(choice.text or choice.reasoning for choice in self._choices.values())
        return nothing or (self._only_text and _repeats(call))

    @property
    def repeated(self) -> bool:
        """A second generation that ends here ends in time: it has said all that was shown. True of nothing shown."""
        return all(choice.repeated for choice in self._choices.values())

    def beyond(self, pieces: list[Piece]) -> list[Piece]:
        """What of a second generation's pieces was not shown yet. Raises: Diverged."""
        fresh = []
        for piece in pieces:
            choice = self._choices.setdefault(piece.index, _Choice())
            reasoning = choice.reasoning_beyond(piece.reasoning)
            text = choice.text_beyond(piece.text)
            if (text or piece.finish_reason) and not choice.repeated:
                raise Diverged
            rest = msgspec.structs.replace(piece, reasoning=reasoning, text=text, token_ids=[])
            if not rest.empty:
                fresh.append(rest)
        return fresh


class _Choice(msgspec.Struct):
    """`text` and `reasoning`: of what was shown, what the second generation has yet to repeat."""

    text: str = ""
    reasoning: str = ""

    @property
    def repeated(self) -> bool:
        return not (self.text or self.reasoning)

    def reasoning_beyond(self, new: str) -> str:
        self.reasoning, beyond = _consume(self.reasoning, new)
        return beyond

    def text_beyond(self, new: str) -> str:
        if new and self.reasoning:  # less reasoning than was shown
            raise Diverged
        self.text, beyond = _consume(self.text, new)
        return beyond


def _consume(shown: str, new: str) -> tuple[str, str]:
    """(what is left of `shown` to be repeated, what `new` has beyond it). Raises: Diverged."""
    common = min(len(shown), len(new))
    if shown[:common] != new[:common]:
        raise Diverged
    return shown[common:], new[common:]


def _repeats(call: Call) -> bool:
    return call.sampling.temperature == 0 or call.sampling.seed is not None

"""`NgramProposer`: drafts for a sequence from its own text (prompt lookup): what followed when its last tokens came
before. Pure Python: no torch, no second model.

A draft costs a row of the step whether it holds or not, so a sequence whose drafts fail proposes shorter ones and waits
twice as long each time; one that holds brings it back to full length.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from engine.sequence import Sequence
from engine.speculative_config import SpeculativeConfig

# Earlier places of the same tokens that are compared for the longest match; the latest come first.
MAX_CANDIDATES = 8
MAX_MISSES = 6  # after 6 failures in a row a sequence tries one token in 64 steps: 1.6 % more rows


@dataclass(slots=True)
class DraftState:
    """What one sequence's text holds and how its drafts fared.

    latest: the last `prompt_lookup_min` tokens -> where they ended last; earlier[end]: where the same ended before,
    0 = nowhere (a chain as in LZ77). length: drafts to propose next time. pause: steps to sit out.
    """

    latest: dict[tuple[int, ...], int] = field(default_factory=dict)
    earlier: list[int] = field(default_factory=lambda: [0])
    length: int = 0
    misses: int = 0
    pause: int = 0


class NgramProposer:
    """Keeps each sequence's state with the sequence itself. Not thread-safe."""

    def __init__(self, config: SpeculativeConfig) -> None:
        self.config = config
        self.num_drafts = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0

    def propose(self, sequence: Sequence, most: int) -> list[int]:
        """At most `most` tokens that may follow; empty when nothing did before, or where drafts do not pay."""
        if most <= 0 or sequence.num_in_flight or not may_speculate(sequence):
            return []
        state = sequence.drafts
        if state is None:
            state = sequence.drafts = DraftState(length=self.config.num_speculative_tokens)
        if state.pause > 0:
            state.pause -= 1
            return []
        self._index(state, sequence.token_ids)
        end = self._find(state, sequence.token_ids)
        return _follow(sequence.token_ids, end, min(most, state.length)) if end else []

    def note(self, sequence: Sequence, num_proposed: int, num_accepted: int) -> None:
        """How many of a sequence's drafts held."""
        self.num_drafts += 1
        self.num_draft_tokens += num_proposed
        self.num_accepted_tokens += num_accepted
        state = sequence.drafts
        assert state is not None, "it has proposed"
        if num_accepted:
            state.misses = 0
            state.length = min(self.config.num_speculative_tokens, 2 * num_accepted)
            return
        state.misses = min(MAX_MISSES, state.misses + 1)
        state.length = max(1, self.config.num_speculative_tokens >> state.misses)
        state.pause = (1 << state.misses) - 1

    def _index(self, state: DraftState, token_ids: Seq[int]) -> None:
        """Every place but the last, which is the one that looks for another."""
        size = self.config.prompt_lookup_min
        for end in range(len(state.earlier), len(token_ids)):
            key = tuple(token_ids[max(0, end - size) : end])
            state.earlier.append(state.latest.get(key, 0))
            state.latest[key] = end

    def _find(self, state: DraftState, token_ids: Seq[int]) -> int:
        """Where the longest earlier copy of the text's end ends, the latest of equals; 0: nowhere."""
        size = self.config.prompt_lookup_min
        end = state.latest.get(tuple(token_ids[-size:]), 0) if len(token_ids) >= size else 0
        best, best_length = 0, 0
        for _ in range(MAX_CANDIDATES):
            if not end or best_length == self.config.prompt_lookup_max:
                break
            length = _match_length(token_ids, end, self.config.prompt_lookup_max)
            if length >= size and length > best_length:
                best, best_length = end, length
            end = state.earlier[end]
        return best


def may_speculate(sequence: Sequence) -> bool:
    """Not with a grammar or penalties: what they allow after a draft depends on the draft, and is worked out from what
    was really said."""
    sampling = sequence.group.request.sampling
    penalised = sampling.repetition_penalty != 1.0 or sampling.presence_penalty or sampling.frequency_penalty
    return sampling.grammar is None and not penalised


def _match_length(token_ids: Seq[int], end: int, most: int) -> int:
    length = 0
    while length < min(most, end) and token_ids[end - 1 - length] == token_ids[len(token_ids) - 1 - length]:
        length += 1
    return length


def _follow(token_ids: Seq[int], start: int, count: int) -> list[int]:
    """`count` tokens from `start` on; beyond the text's end the copy reads what it has written."""
    drafts: list[int] = []
    for position in range(start, start + count):
        drafts.append(token_ids[position] if position < len(token_ids) else drafts[position - len(token_ids)])
    return drafts

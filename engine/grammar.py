"""Grammar masks for structured output, by llguidance: which tokens may come next in each sequence of a batch."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from engine.errors import InvalidRequest
from engine.sequence import Sequence
from engine.types import SamplingParams


class GrammarMasks:
    """One matcher a sequence with a grammar. The base class knows no grammar: requests with one are refused."""

    @property
    def available(self) -> bool:
        return False

    def masks(self, sequences: Seq[Sequence], device: torch.device) -> dict[int, torch.Tensor]:  # noqa: ARG002
        """Row -> bool [logits_width] of the rows whose sequence has a grammar, True = allowed."""
        return {}

    def validate(self, sampling: SamplingParams) -> None:
        """Raises: InvalidRequest for a grammar that cannot be used."""
        if sampling.grammar is not None:
            raise InvalidRequest("this engine was started without grammars", param="grammar")

    def advance(self, sequence: Sequence, token_id: int) -> bool:  # noqa: ARG002
        """A token was chosen. Returns False if the sequence's grammar refuses it."""
        return True

    def is_complete(self, sequence: Sequence) -> bool:  # noqa: ARG002
        """Whether the grammar allows nothing more."""
        return False

    def forget(self, sequence: Sequence) -> None:
        """The sequence ended."""

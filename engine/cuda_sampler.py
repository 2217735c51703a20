"""`CudaSampler`: the sampler's draw by `kernels.sampling`, with parameters and seeds from the device's own tables.

A row's draw depends on its seed and its token's position alone, whether a captured step or an eager one makes it. The
numbers are not the CPU sampler's: a seed gives the same answer on the same kind of device.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from engine.cuda_state import CudaRequestState, SamplingColumns
from engine.request_state import uses_penalties
from engine.sampler import Sampled, Sampler, wants_logprobs
from engine.sequence import Sequence
from kernels.sampling import sample


def needs_host_work(sequence: Sequence) -> bool:
    """Whether choosing its next token takes more than temperature and filters: then a captured step cannot do it."""
    sampling = sequence.group.request.sampling
    return (
        bool(sampling.logit_bias)
        or sampling.grammar is not None
        or uses_penalties(sequence)
        or sequence.num_outputs <= sampling.min_tokens > 0
        or wants_logprobs(sequence) is not None
    )


class CudaSampler(Sampler):
    def __init__(self, state: CudaRequestState, eos_token_ids: Seq[int]) -> None:
        super().__init__(state, eos_token_ids)
        self._tables = state

    def sample(
        self, logits: torch.Tensor, sequences: Seq[Sequence], masks: dict[int, torch.Tensor] | None = None
    ) -> Sampled:
        """As the base class; nothing is read back unless log-probabilities are asked for."""
        where = self._tables.staging.to_device(
            [sequence.row for sequence in sequences] + [sequence.num_tokens - 1 for sequence in sequences]
        )
        rows, positions = where[: len(sequences)], where[len(sequences) :]
        special = masks or any(needs_host_work(sequence) for sequence in sequences)
        raw = logits.float() if special else logits
        adjusted = self._adjust(raw, sequences, masks or {}) if special else raw
        token_ids = draw(self._tables.params, adjusted, rows, positions)
        if special:
            # A mask that left nothing, or an overflow; the kernel itself reports only NaN.
            token_ids = torch.where(torch.isfinite(adjusted.amax(dim=-1)), token_ids, -1)
            self._count(sequences, token_ids)
        return Sampled(token_ids, self._logprobs(raw, token_ids, sequences) if special else {})


def draw(params: torch.Tensor, logits: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Token ids int64 [R], -1 where a logit is NaN.

    Args: params as `CudaRequestState.params`; logits [R, vocab]; rows int64 [R]; positions int64 [R], of the tokens
    to come.
    """
    columns = SamplingColumns(params, rows)
    return sample(
        logits,
        columns.temperatures,
        columns.top_ks,
        columns.top_ps,
        columns.min_ps,
        columns.seeds,
        positions,
    )

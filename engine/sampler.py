"""`Sampler`: logits in, token ids out. Raw log-probabilities first; then grammar mask, minimum length, bias, penalties,
temperature, top-k, top-p, min-p; then one draw by inverse CDF from a number that depends on (seed, position) alone.

Rows do not see each other: every operation is row-wise. A row whose logits hold NaN, or to which no token is allowed,
gets `FAILED` instead of a token.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch

from engine.random_uniform import uniform
from engine.request_state import RequestState, uses_penalties
from engine.sequence import Sequence
from engine.types import SamplingParams

FAILED = -1
# Candidates looked at before a full sort: at temperature 1 the top 256 of a 49k vocabulary hold a top_p of 0.95 in
# nearly every step, and topk takes 0.1 ms where a sort takes 3 ms.
CANDIDATES = 256


@dataclass
class Logprobs:
    """Raw log-probabilities of one position: the chosen token's, its rank (1 = most likely), the top ones."""

    token_id: int
    logprob: float
    rank: int
    top_ids: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)


@dataclass
class Sampled:
    """token_ids int64 [R] on the device, FAILED where a row has no token; logprobs by row, where asked for."""

    token_ids: torch.Tensor
    logprobs: dict[int, Logprobs] = field(default_factory=dict)


def wants_logprobs(sequence: Sequence) -> int | None:
    """How many top log-probabilities a sequence asks for: its own count; 0 when best_of must rank it; None."""
    sampling = sequence.group.request.sampling
    if sampling.logprobs is None and (sampling.best_of or 1) > sampling.n:
        return 0
    return sampling.logprobs


def output_numbers(sequences: Seq[Sequence]) -> list[int]:
    """Which of its sequence's outputs each row samples, from 1: a sequence's rows after its first follow drafts.

    A token is drawn by a number of its own position, and a draft holds if it is that token. So speculation changes no
    answer, drawn or greedy; for drafts that are certain of themselves this is rejection sampling (arXiv:2211.17192).
    """
    seen: dict[Sequence, int] = {}
    numbers = []
    for sequence in sequences:
        numbers.append(seen[sequence] + 1 if sequence in seen else sequence.num_outputs)
        seen[sequence] = numbers[-1]
    return numbers


class Sampler:
    def __init__(self, state: RequestState, eos_token_ids: Seq[int]) -> None:
        self._state = state
        self._eos = tuple(eos_token_ids)

    def sample(
        self, logits: torch.Tensor, sequences: Seq[Sequence], masks: dict[int, torch.Tensor] | None = None
    ) -> Sampled:
        """One token for each row.

        Args: logits [R, vocab] of any dtype; sequences of the rows, each with its new token already counted in
        `num_tokens`, and with drafts once more for each of them; masks: row -> bool [vocab], True where the grammar
        allows a token.
        """
        raw = logits.float()
        adjusted = self._adjust(raw, sequences, masks or {})
        best, token_ids = _largest(adjusted)
        params = [s.group.request.sampling for s in sequences]
        random_rows = [i for i, p in enumerate(params) if p.temperature > 0]
        if random_rows:
            index = torch.tensor(random_rows, device=raw.device)
            numbers = output_numbers(sequences)
            token_ids[index] = self._draw(
                adjusted[index], [sequences[i] for i in random_rows], [numbers[i] for i in random_rows]
            )
        # max is NaN if any logit is; -inf when a mask left nothing; +inf is an overflow.
        token_ids = torch.where(torch.isfinite(best), token_ids, FAILED)
        self._count(sequences, token_ids)
        return Sampled(token_ids, self._logprobs(raw, token_ids, sequences))

    def _adjust(self, raw: torch.Tensor, sequences: Seq[Sequence], masks: dict[int, torch.Tensor]) -> torch.Tensor:
        """Row by row, only for the rows that ask for it; the raw logits stay as they are."""
        out = raw
        numbers = output_numbers(sequences)
        for i, sequence in enumerate(sequences):
            sampling = sequence.group.request.sampling
            penalised = uses_penalties(sequence)
            short = sampling.min_tokens >= numbers[i]  # outputs count the one being sampled
            if not (i in masks or sampling.logit_bias or penalised or (short and sampling.min_tokens)):
                continue
            if out is raw:
                out = raw.clone()
            row = out[i]
            if i in masks:
                row.masked_fill_(~masks[i], float("-inf"))
            if penalised:
                self._penalise(row, sequence)
            if sampling.logit_bias:
                ids = torch.tensor(list(sampling.logit_bias), device=raw.device)
                row[ids] += torch.tensor(list(sampling.logit_bias.values()), device=raw.device)
            if short and sampling.min_tokens:
                ends = (*self._eos, *sampling.stop_token_ids)
                row[torch.tensor(ends, dtype=torch.int64, device=raw.device)] = float("-inf")
        return out

    def _penalise(self, row: torch.Tensor, sequence: Sequence) -> None:
        """Repetition divides positive and multiplies negative logits of tokens seen in prompt or output (CTRL,
        arXiv:1909.05858); presence and frequency subtract for output tokens (OpenAI's definition)."""
        sampling = sequence.group.request.sampling
        counts, seen = self._state.output_counts, self._state.prompt_seen
        assert counts is not None, "made when the row was admitted"
        assert seen is not None, "made with the counts"
        outputs = counts[sequence.row]
        if sampling.repetition_penalty != 1.0:
            repeated = seen[sequence.row] | (outputs > 0)
            scaled = torch.where(row > 0, row / sampling.repetition_penalty, row * sampling.repetition_penalty)
            row.copy_(torch.where(repeated, scaled, row))
        if sampling.frequency_penalty:
            row.sub_(outputs, alpha=sampling.frequency_penalty)
        if sampling.presence_penalty:
            row.sub_((outputs > 0).float(), alpha=sampling.presence_penalty)

    def _draw(self, logits: torch.Tensor, sequences: Seq[Sequence], numbers: Seq[int]) -> torch.Tensor:
        """numbers: of each row's token among its sequence's outputs, from 1."""
        params = [s.group.request.sampling for s in sequences]
        device = logits.device
        scaled = logits / torch.tensor([max(p.temperature, 1e-5) for p in params], device=device)[:, None]
        draws = torch.tensor(
            [uniform(s.group.seed, s.index, number - 1) for s, number in zip(sequences, numbers, strict=True)],
            dtype=torch.float64,
            device=device,
        )[:, None]
        filtered = [i for i, p in enumerate(params) if p.top_k > 0 or p.top_p < 1 or p.min_p > 0]
        if len(filtered) == len(params):
            return _draw_filtered(scaled, draws, _Filters.of(params, device))
        token_ids = _invert(torch.softmax(scaled, dim=-1), draws)
        if filtered:
            index = torch.tensor(filtered, device=device)
            filters = _Filters.of([params[i] for i in filtered], device)
            token_ids[index] = _draw_filtered(scaled[index], draws[index], filters)
        return token_ids

    def _count(self, sequences: Seq[Sequence], token_ids: torch.Tensor) -> None:
        rows = [i for i, s in enumerate(sequences) if uses_penalties(s)]
        if not rows or self._state.output_counts is None:
            return
        state_rows = torch.tensor([sequences[i].row for i in rows], device=token_ids.device)
        chosen = token_ids[rows]
        self._state.output_counts[state_rows, chosen.clamp(min=0)] += (chosen >= 0).to(torch.int32)

    def _logprobs(self, raw: torch.Tensor, token_ids: torch.Tensor, sequences: Seq[Sequence]) -> dict[int, Logprobs]:
        wanted = {i: k for i, s in enumerate(sequences) if (k := wants_logprobs(s)) is not None}
        if not wanted:
            return {}
        rows = list(wanted)
        found = raw_logprobs(raw[rows], token_ids[rows].clamp(min=0), max(wanted.values()))
        for row, item in zip(rows, found, strict=True):
            del item.top_ids[wanted[row] :], item.top_logprobs[wanted[row] :]
        return dict(zip(rows, found, strict=True))


@dataclass(frozen=True)
class _Filters:
    """Per row: top_k (vocab-sized when off), top_p, min_p; each [R, 1]."""

    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    max_k: int

    @classmethod
    def of(cls, params: Seq[SamplingParams], device: torch.device) -> _Filters:
        ks = [p.top_k if p.top_k > 0 else 1 << 31 for p in params]
        bounds = torch.tensor([(p.top_p, p.min_p) for p in params], dtype=torch.float64, device=device)
        return cls(torch.tensor(ks, device=device)[:, None], bounds[:, :1], bounds[:, 1:], max(ks))

    def select(self, rows: torch.Tensor) -> _Filters:
        return _Filters(self.top_k[rows], self.top_p[rows], self.min_p[rows], self.max_k)


def _largest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest logit of each row (NaN if it has one) and its id, of equals the first. logits float32 [R, vocab]."""
    if logits.device.type != "cpu":
        best, token_ids = logits.max(dim=-1)
        return best, token_ids
    # 16 rows of 49k on a CPU: torch's max with its index takes 1.7 ms, numpy's argmax 0.16.
    token_ids = torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.gather(1, token_ids[:, None]).squeeze(1), token_ids


def _invert(probs: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """The first entry whose cumulated probability passes draw * total; float64, as 49k float32 terms lose 1e-4."""
    cumulated = probs.cumsum(dim=-1, dtype=torch.float64)
    chosen = torch.searchsorted(cumulated, draws * cumulated[:, -1:], right=True)
    return chosen.clamp_(max=probs.shape[-1] - 1).squeeze(-1)


def _draw_filtered(
    scaled: torch.Tensor, draws: torch.Tensor, filters: _Filters, width: int = CANDIDATES
) -> torch.Tensor:
    """Draws from the tokens that top-k, then top-p over what top-k left, then min-p keep. Rows whose kept tokens may
    reach beyond the first `width` candidates are done again over the whole vocabulary."""
    vocab = scaled.shape[-1]
    width = min(vocab, max(width, filters.max_k if filters.max_k <= vocab else 0))
    values, ids = scaled.topk(width, dim=-1)
    probs = (values.double() - scaled.double().logsumexp(dim=-1, keepdim=True)).exp()
    probs = probs.masked_fill(torch.arange(width, device=scaled.device)[None] >= filters.top_k, 0.0)
    limited = filters.top_k <= width
    # What top-p sees is renormalised over top-k's tokens; without top-k over the whole vocabulary.
    mass = torch.where(limited, probs.sum(dim=-1, keepdim=True), 1.0)
    before = probs.cumsum(dim=-1) - probs
    keep = (before < filters.top_p * mass) & (probs >= filters.min_p * probs[:, :1])
    keep[:, 0] = True
    if width < vocab:
        cut = limited | ~keep[:, -1:]
        again = (~cut.squeeze(-1)).nonzero().squeeze(-1)
        if again.numel():
            out = ids.gather(1, _invert(probs * keep, draws)[:, None]).squeeze(-1)
            out[again] = _draw_filtered(scaled[again], draws[again], filters.select(again), vocab)
            return out
    return ids.gather(1, _invert(probs * keep, draws)[:, None]).squeeze(-1)


def raw_logprobs(raw: torch.Tensor, token_ids: torch.Tensor, top: int) -> list[Logprobs]:
    """Log-probabilities (natural log) of the raw logits. raw float32 [R, vocab], token_ids int64 [R]."""
    normaliser = raw.logsumexp(dim=-1, keepdim=True)
    chosen = raw.gather(1, token_ids[:, None])
    logprobs = (chosen - normaliser).squeeze(1).tolist()
    ranks = ((raw > chosen).sum(dim=-1) + 1).tolist()
    ids = token_ids.tolist()
    if not top:
        return [Logprobs(*item) for item in zip(ids, logprobs, ranks, strict=True)]
    values, top_ids = raw.topk(min(top, raw.shape[-1]), dim=-1)
    tops = zip(top_ids.tolist(), (values - normaliser).tolist(), strict=True)
    return [Logprobs(*item, *best) for item, best in zip(zip(ids, logprobs, ranks, strict=True), tops, strict=True)]

"""`ModelRunner`: runs a plan on the device. `submit` starts a step, `collect` waits for its few integers.

Nothing in `submit` reads the device back, so on a GPU the next plan can be made and submitted while this one runs: its
input ids are gathered from the token table that this step's sampler writes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from engine.attention import Attention
from engine.batch import StepBatch, build_batch
from engine.grammar import GrammarMasks
from engine.kv_cache import CacheLayout, KVCache
from engine.models.base import CausalLM
from engine.request_state import RequestState
from engine.sampler import Logprobs, Sampled, Sampler, raw_logprobs
from engine.sequence import Sequence
from engine.step_plan import Scheduled, StepPlan

# Rows of prompt logits held at a time: 64 x 128k x 4 bytes = 33 MB, where a 100k prompt's would be 51 GB.
PROMPT_LOGPROB_ROWS = 64
# Query tokens of one forward call in the deterministic mode: every product has this many rows, always.
INVARIANT_TOKENS = 16


@dataclass
class PendingStep:
    """A step that was submitted; its tensors may not be ready yet."""

    plan: StepPlan
    sequences: list[Sequence]
    sampled: Sampled | None
    prompt_logprobs: dict[Sequence, list[Logprobs]] = field(default_factory=dict)


@dataclass
class StepOutput:
    """token_ids: one a sampled sequence, in the plan's order (FAILED = no token); logprobs by that order."""

    token_ids: list[int]
    logprobs: dict[int, Logprobs]
    prompt_logprobs: dict[Sequence, list[Logprobs]]


class ModelRunner:
    """Args: eos_token_ids for min_tokens; deterministic: batch-invariant forward calls."""

    state_class: type[RequestState] = RequestState
    sampler_class: type[Sampler] = Sampler

    def __init__(
        self,
        model: CausalLM,
        layout: CacheLayout,
        *,
        device: torch.device,
        max_num_seqs: int,
        max_model_len: int,
        logits_width: int,
        eos_token_ids: tuple[int, ...],
        grammars: GrammarMasks,
        deterministic: bool = False,
    ) -> None:
        self.model = model
        self.cache = KVCache(layout, device)
        self.device = device
        self.grammars = grammars
        self.deterministic = deterministic
        self.state = self.state_class(
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            block_size=layout.block_size,
            num_groups=len(layout.groups),
            logits_width=logits_width,
            device=device,
        )
        self.sampler = self.sampler_class(self.state, eos_token_ids)

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> PendingStep:
        """Starts a step. Raises whatever the device raises; the plan's sequences are then lost."""
        self.cache.apply(plan)
        self.state.apply(plan)
        sequences = plan.sampled
        if not plan.scheduled:
            return PendingStep(plan, sequences, None)
        batch = build_batch(plan, self.state)
        hidden = self._forward(batch)
        pending = PendingStep(plan, sequences, None, self._prompt_logprobs(plan, hidden))
        if sequences:
            logits = self._logits(hidden[batch.sample_from])
            pending.sampled = self.sampler.sample(logits, sequences, self.grammars.masks(sequences, self.device))
            self.state.append(batch.sample_rows, batch.sample_positions, pending.sampled.token_ids.clamp(min=0))
        return pending

    def collect(self, pending: PendingStep) -> StepOutput:
        """Waits for the step and reads its tokens."""
        if pending.sampled is None:
            return StepOutput([], {}, pending.prompt_logprobs)
        return StepOutput(pending.sampled.token_ids.tolist(), pending.sampled.logprobs, pending.prompt_logprobs)

    def measure_page_move_s(self, num_pages: int = 32) -> float:
        """Seconds to move one page of every group out to host memory and in again; 0 without host pages."""
        moves = min([num_pages, *self.cache.layout.num_host_pages, *(n - 1 for n in self.cache.layout.num_pages)])
        if moves < 1:
            return 0.0
        best = float("inf")
        for _ in range(3):
            started = time.perf_counter()
            for source, host in zip(self.cache.pools, self.cache.host_pools, strict=True):
                # Page 0 is never allocated, so that reading it and writing zeros to it disturbs nobody.
                for page in range(moves):
                    host[page].view(torch.uint8).copy_(source[0].view(torch.uint8), non_blocking=True)
                    source[0].view(torch.uint8).copy_(host[page].view(torch.uint8), non_blocking=True)
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - started)
        return best / moves / len(self.cache.pools)

    def _forward(self, batch: StepBatch) -> torch.Tensor:
        if not self.deterministic:
            attention = Attention(self.cache.view, batch.meta)
            return self.model.forward(batch.input_ids, batch.positions, attention)
        from engine.invariant import invariant_forward

        return invariant_forward(self.model, self.cache.view, batch, INVARIANT_TOKENS)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        if not self.deterministic:
            return self.model.compute_logits(hidden)
        from engine.invariant import invariant_rows

        return invariant_rows(self.model.compute_logits, hidden, INVARIANT_TOKENS)

    def _prompt_logprobs(self, plan: StepPlan, hidden: torch.Tensor) -> dict[Sequence, list[Logprobs]]:
        """Of the prompt tokens whose predecessor is in this step, a few rows of logits at a time."""
        found: dict[Sequence, list[Logprobs]] = {}
        offset = 0
        for item in plan.scheduled:
            top = item.sequence.group.request.sampling.prompt_logprobs
            if top is not None and item.sequence.index == 0:
                rows = self._prompt_rows(item, hidden[offset : offset + item.length], top)
                if rows:
                    found[item.sequence] = rows
            offset += item.length
        return found

    def _prompt_rows(self, item: Scheduled, hidden: torch.Tensor, top: int) -> list[Logprobs]:
        last = min(item.start + item.length, item.sequence.num_prompt - 1)
        found: list[Logprobs] = []
        first = max(item.start, item.sequence.num_scored)
        item.sequence.num_scored = max(last, first)
        for start in range(first, last, PROMPT_LOGPROB_ROWS):
            end = min(last, start + PROMPT_LOGPROB_ROWS)
            logits = self._logits(hidden[start - item.start : end - item.start]).float()
            predicted = torch.tensor(item.sequence.token_ids[start + 1 : end + 1], device=self.device)
            found.extend(raw_logprobs(logits, predicted, top))
        return found

"""`CudaRunner`: a `ModelRunner` that never waits for the device in `submit`.

Steps of decodes alone replay a captured graph, and so do the layers of steps with prompt chunks of few tokens; larger
ones are launched kernel by kernel, as the device then has milliseconds of work a launch. Sampled ids are copied to
pinned memory behind an event, so that `collect` waits for its own step and not for the one submitted after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch

from engine.attention import Attention, AttentionMetadata
from engine.batch import build_batch
from engine.cuda_sampler import CudaSampler, draw, needs_host_work
from engine.cuda_state import CudaRequestState
from engine.decode_graphs import DecodeGraphs
from engine.mixed_graphs import MixedGraphs
from engine.model_runner import ModelRunner, PendingStep, StepOutput
from engine.sampler import Sampled
from engine.shared_prefix import PrefixGroups
from engine.staging import NUM_SLOTS
from engine.step_plan import StepPlan

# A prompt for which attention takes its form for short chunks.
SHORT_PROMPT = 65


@dataclass
class CudaPendingStep(PendingStep):
    """host_ids: where the step's token ids arrive; ready: when they have; order: which of the plan's sequences each of
    them belongs to, None for the plan's own order."""

    host_ids: torch.Tensor | None = None
    ready: torch.cuda.Event | None = None
    order: list[int] | None = None


class CudaRunner(ModelRunner):
    """Runs on a CPU too (tests), uncaptured."""

    state: CudaRequestState
    state_class = CudaRequestState
    sampler_class = CudaSampler

    def warm_up(self, *, capture: bool = True, max_tokens: int = 2048) -> float:
        """Makes the graphs and the buffers ids come back through, and runs a long and a short prompt, so
        that no request waits for a compilation or for memory. Returns the seconds the graphs took."""
        count = self.state.tokens.shape[0]
        pinned = self.device.type == "cuda"
        self._host_ids = [torch.empty(count, dtype=torch.int64, pin_memory=pinned) for _ in range(NUM_SLOTS)]
        self._turn = 0
        self.graphs: DecodeGraphs | None = None
        self.mixed: MixedGraphs | None = None
        self.prefix_groups = PrefixGroups(self.state.block_size)
        started = time.perf_counter()
        longest = self.state.tokens.shape[1] - 1
        short = min(max_tokens, SHORT_PROMPT)
        # The last is a short chunk of a long context, whose attention takes another form.
        prompts = [(max_tokens, max_tokens), (short, short), (short, longest)]
        compilations: list[Callable[[], None]] = [partial(self._run_empty_prompt, *sizes) for sizes in prompts]
        if not self.deterministic and capture:
            self.graphs = DecodeGraphs(
                self.model, self.cache.view, self.state, max_num_seqs=count, max_model_len=longest
            )
            compilations += self.graphs.compilations()
            if pinned:
                self.mixed = MixedGraphs(
                    self.model, self.cache.view, self.state,
                    max_num_seqs=count, max_num_batched_tokens=max_tokens, max_model_len=longest,
                )  # fmt: skip
                compilations += self.mixed.compilations()
        if pinned:
            # Side by side: much of a compilation is a process of its own.
            with ThreadPoolExecutor(len(compilations)) as threads:
                list(threads.map(lambda compilation: compilation(), compilations))
            torch.cuda.synchronize()
            self._capture()
        return time.perf_counter() - started

    def _capture(self) -> None:
        if self.graphs is None or self.mixed is None:
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        pool = torch.cuda.graph_pool_handle()
        with torch.cuda.stream(stream):
            self.graphs.capture_all(pool, stream)
            self.mixed.capture_all(pool, stream)
        torch.cuda.current_stream().wait_stream(stream)

    @torch.inference_mode()
    def _run_empty_prompt(self, num_tokens: int, max_seq_len: int) -> None:
        """A prompt that reads the null page and is written nowhere, launched as among contexts of `max_seq_len`."""
        num_tokens = min(num_tokens, self.state.tokens.shape[1] - 1)
        columns = -(-num_tokens // self.state.block_size)
        positions = torch.arange(num_tokens, device=self.device)
        lengths = torch.tensor([0, num_tokens], dtype=torch.int32, device=self.device)
        meta = AttentionMetadata(
            cu_seqlens_q=lengths,
            seq_lens=lengths[1:],
            block_tables=tuple(table.new_zeros(1, columns) for table in self.state.block_tables),
            slot_mapping=tuple(torch.full_like(positions, -1) for _ in self.state.block_tables),
            num_decodes=0,
            max_query_len=num_tokens,
            max_seq_len=max_seq_len,
        )
        hidden = self.model(torch.zeros_like(positions), positions, Attention(self.cache.view, meta))
        draw(self.state.params, self._logits(hidden[-1:]), positions[:1], positions[:1])

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> PendingStep:
        """Starts a step. Raises whatever the device raises; the plan's sequences are then lost."""
        self.cache.apply(plan)
        self.state.apply(plan)
        sequences = plan.sampled
        if not plan.scheduled:
            return PendingStep(plan, sequences, None)
        if self.graphs is not None and all(
            item.length == 1 and item.samples and not item.forks for item in plan.scheduled
        ):
            return self._submit_decodes(plan, self.graphs)
        self.prefix_groups.forget()
        batch = build_batch(plan, self.state)
        captured = self.mixed is not None and self.mixed.fits(batch)
        hidden = self.mixed.run(batch) if captured and self.mixed is not None else self._forward(batch)
        prompt_logprobs = self._prompt_logprobs(plan, hidden)
        if not sequences:
            return PendingStep(plan, sequences, None, prompt_logprobs)
        logits = self._logits(hidden[batch.sample_from])
        sampled = self.sampler.sample(logits, sequences, self.grammars.masks(sequences, self.device))
        self.state.append(batch.sample_rows, batch.sample_positions, sampled.token_ids.clamp(min=0))
        pending = CudaPendingStep(plan, sequences, sampled, prompt_logprobs)
        self._send_home(pending, sampled.token_ids)
        return pending

    def _submit_decodes(self, plan: StepPlan, graphs: DecodeGraphs) -> PendingStep:
        sequences = plan.sampled
        special = any(needs_host_work(sequence) for sequence in sequences)
        shared = self.prefix_groups.find(plan) if graphs.shared_sizes and not special else None
        items = plan.scheduled if shared is None else [plan.scheduled[i] for i in shared.order]
        rows, starts = [item.row for item in items], [item.start for item in items]
        logits, token_ids = graphs.run(rows, starts, shared)
        sampled = Sampled(token_ids)
        if special:
            sampled = self.sampler.sample(logits, sequences, self.grammars.masks(sequences, self.device))
            where = self.state.staging.to_device(rows + [start + 1 for start in starts])
            self.state.append(where[: len(rows)], where[len(rows) :], sampled.token_ids.clamp(min=0))
        pending = CudaPendingStep(plan, sequences, sampled, order=None if shared is None else shared.order)
        self._send_home(pending, sampled.token_ids)
        return pending

    def _send_home(self, pending: CudaPendingStep, token_ids: torch.Tensor) -> None:
        self._turn = (self._turn + 1) % NUM_SLOTS
        pending.host_ids = self._host_ids[self._turn][: token_ids.shape[0]]
        pending.host_ids.copy_(token_ids, non_blocking=True)
        if self.device.type == "cuda":
            pending.ready = torch.cuda.Event()
            pending.ready.record()

    def collect(self, pending: PendingStep) -> StepOutput:
        """Waits for this step alone, and reads its tokens."""
        if not isinstance(pending, CudaPendingStep) or pending.host_ids is None or pending.sampled is None:
            return super().collect(pending)
        if pending.ready is not None:
            pending.ready.synchronize()
        token_ids = pending.host_ids.tolist()
        if pending.order is not None:
            by_item = dict(zip(pending.order, token_ids, strict=True))
            token_ids = [by_item[i] for i in range(len(token_ids))]
        return StepOutput(token_ids, pending.sampled.logprobs, pending.prompt_logprobs)

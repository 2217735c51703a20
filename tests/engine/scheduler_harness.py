"""A scheduler without a device: every step "samples" token 1 for whoever is due, and checks every invariant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from engine.block_manager import BlockManager, GroupLayout
from engine.ngram_proposer import NgramProposer
from engine.queue_gate import QueueGate
from engine.scheduler import Scheduler, SchedulerLimits
from engine.sequence import RequestGroup, Sequence, Status
from engine.speculative_config import SpeculativeConfig
from engine.step_plan import StepPlan, sampled_rows
from engine.types import EngineRequest, FinishReason, Priority, SamplingParams


@dataclass
class Driver:
    """`served` counts by tenant the prompt tokens computed (once, whatever preemption repeats) and tokens sampled;
    `computed` counts every token that went through the model; `next_token` is what every row samples."""

    scheduler: Scheduler
    next_token: Callable[[], int] = lambda: 1
    served: Counter[str] = field(default_factory=Counter)
    computed: int = 0
    finished: list[str] = field(default_factory=list)
    steps: int = 0
    _furthest: dict[Sequence, int] = field(default_factory=dict)

    def add(
        self,
        name: str,
        length: int = 10,
        *,
        max_tokens: int = 10,
        tenant: str = "a",
        priority: Priority = Priority.STANDARD,
        weight: float = 1.0,
        ids: list[int] | None = None,
        **sampling: Any,
    ) -> RequestGroup:
        request = EngineRequest(
            request_id=name,
            # Prompts differ from their first token, so that no cached prefix hides a prompt's cost.
            prompt_token_ids=ids or [crc32(name.encode()), *range(1, length)],
            sampling=SamplingParams(**sampling),
            cache_salt=f"salt-of-{tenant}".encode(),
            tenant=tenant,
            priority=priority,
            weight=weight,
        )
        self.scheduler.gate.enter(len(request.prompt_token_ids))
        return self.scheduler.add(request, max_tokens=max_tokens, seed=0)

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule()
        self.steps += 1
        for item in plan.scheduled:
            tenant = item.sequence.group.request.tenant
            end = min(item.start + item.length, item.sequence.num_prompt)
            furthest = self._furthest.get(item.sequence, item.start)
            self.served[tenant] += max(0, end - furthest)
            self._furthest[item.sequence] = max(end, furthest)
            self.computed += item.length
        for rows in sampled_rows(plan):
            taken = 0
            while taken < len(rows) and (not taken or rows[taken].draft == rows[0].sequence.token_ids[-1]):
                self._take(rows[0].sequence, after_draft=taken > 0)
                taken += 1
            if len(rows) > 1:
                self.scheduler.end_drafts(rows[0].sequence, len(rows) - 1, taken - 1)
        self.scheduler.check()
        return plan

    def _take(self, sequence: Sequence, *, after_draft: bool) -> None:
        self.served[sequence.group.request.tenant] += 1
        if sequence.status is Status.FINISHED:
            return
        self.scheduler.update(sequence, self.next_token(), after_draft=after_draft)
        if len(sequence.token_ids) - sequence.num_prompt >= sequence.group.max_tokens:
            self.scheduler.finish(sequence, FinishReason.LENGTH)
            self.finished.append(sequence.group.request.request_id)

    def run(self, max_steps: int = 10_000) -> None:
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError(f"still {len(self.scheduler.groups)} requests after {max_steps} steps")

    @property
    def running(self) -> list[str]:
        return [sequence.group.request.request_id for sequence in self.scheduler.running]


def make_driver(
    *,
    num_pages: int = 1001,
    seqs: int = 8,
    budget: int = 64,
    threshold: int = 64,
    groups: tuple[GroupLayout, ...] | None = None,
    max_queued: int = 10_000,
    swap_is_cheaper: Any = None,
    drafts: int = 0,
    **settings: Any,
) -> Driver:
    caching = settings.pop("enable_prefix_caching", True)
    cap_share = settings.pop("cap_share", 0.5)
    blocks = BlockManager(
        groups or (GroupLayout(None, num_pages),),
        block_size=16,
        max_chunk=budget,
        enable_prefix_caching=caching,
        cap_share=cap_share,
    )
    limits = SchedulerLimits(
        max_num_seqs=seqs, max_num_batched_tokens=budget, long_prefill_token_threshold=threshold, **settings
    )
    options = {} if swap_is_cheaper is None else {"swap_is_cheaper": swap_is_cheaper}
    if drafts:
        options["proposer"] = NgramProposer(SpeculativeConfig(method="ngram", num_speculative_tokens=drafts))
    return Driver(Scheduler(limits, blocks, QueueGate(max_queued, None), **options))

"""`Scheduler`: which tokens run in the next step. Pure Python: no torch, no clock, no device.

There are no prefill or decode phases: every running sequence is behind by some tokens, and a step's budget is given
out until all have caught up (one token for a decode, a chunk for a prompt). Per step, class by class: decodes, prompts
in progress, then admissions. Decode tokens of all classes are set aside first, so no prompt can starve a decode.

Who yields: when pages are short, the lowest class and latest arrival; when slots or pages are short for a waiting
request of a better class, a running one of a lower class; when a tenant is owed more than one longest prompt, the
latest of the most served tenant. A victim loses its pages to recompute or to host memory, whichever costs less.

With a proposer a decode may bring drafts: tokens it is likely to say, each a further row of the step. They take what is
left over (budget, pages, slots of the batch), so nobody waits for a draft.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from engine.block_manager import BlockManager, PrefixHit
from engine.fair_queue import FairQueue
from engine.ngram_proposer import NgramProposer
from engine.queue_gate import QueueGate
from engine.sequence import RequestGroup, Sequence, Status
from engine.step_plan import Scheduled, StepPlan
from engine.types import EngineRequest, FinishReason, Priority

# After this many preemptions a sequence comes back only when it and all running ones fit at their full length,
# so pages can never again run out under it: a request is preempted a bounded number of times.
MAX_PREEMPTIONS = 3
# Drafts take at most this part of a step's token budget.
DRAFT_SHARE = 8


@dataclass(frozen=True, kw_only=True)
class SchedulerLimits:
    """A step's bounds: sequences, tokens, and prompt tokens of one sequence while others have work."""

    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int
    enable_chunked_prefill: bool = True
    by_priority: bool = True


class Scheduler:
    """Args: swap_is_cheaper(num_tokens, num_pages): whether moving that many pages out and in costs less than computing
    that many tokens again; proposer: drafts for decodes, None for none. Drafts follow what the host has read, so steps
    must not overlap."""

    def __init__(
        self,
        limits: SchedulerLimits,
        blocks: BlockManager,
        gate: QueueGate,
        swap_is_cheaper: Callable[[int, int], bool] = lambda _tokens, _pages: False,
        proposer: NgramProposer | None = None,
    ) -> None:
        self.limits = limits
        self.blocks = blocks
        self.gate = gate
        self.proposer = proposer
        self.running: list[Sequence] = []
        self.groups: dict[str, RequestGroup] = {}
        self.num_preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._swap_is_cheaper = swap_is_cheaper
        self._queues = {priority: FairQueue(fair=limits.by_priority) for priority in Priority}
        self._free_rows = list(range(limits.max_num_seqs - 1, -1, -1))
        self._arrivals = 0
        self._budget = 0
        self._decode_reserve = 0
        self._draft_budget = 0
        self._unscheduled: dict[Sequence, None] = {}
        self._closed_from = len(Priority)

    # -- requests ----------------------------------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    @property
    def has_work(self) -> bool:
        return bool(self.groups)

    def sequences(self) -> Iterator[Sequence]:
        """Every unfinished sequence."""
        return (s for g in self.groups.values() for s in g.sequences if s.status is not Status.FINISHED)

    def served_tokens(self, priority: Priority, tenant: str) -> float:
        """The tenant's virtual token counter in a class."""
        return self._queues[priority].served(tenant)

    def add(self, request: EngineRequest, *, max_tokens: int, seed: int) -> RequestGroup:
        """Queues a validated request that has passed the gate. Raises: ValueError on an id already in use."""
        if request.request_id in self.groups:
            raise ValueError(f"request id {request.request_id!r} is already in use")
        sampling = request.sampling
        group = RequestGroup(request, self._arrivals, max_tokens, seed, max(sampling.n, sampling.best_of or 1))
        self._arrivals += 1
        length = len(request.prompt_token_ids)
        sequence = Sequence(group, 0, list(request.prompt_token_ids), length, length)
        self.blocks.extend_hashes(sequence)
        group.sequences.append(sequence)
        self.groups[request.request_id] = group
        self._queue(sequence).append(sequence)
        return group

    def finish(
        self, sequence: Sequence, reason: FinishReason, stop_reason: str | int | None = None, *, condemn: bool = False
    ) -> None:
        """The one end of a sequence, from any state; finishing twice is harmless."""
        if sequence.status is Status.FINISHED:
            return
        group = sequence.group
        if sequence.status is Status.WAITING:
            self._queue(sequence).remove(sequence)
        else:
            self._stop_running(sequence)
        self.blocks.release(sequence, condemn=condemn)
        sequence.status = Status.FINISHED
        sequence.finish_reason, sequence.stop_reason = reason, stop_reason
        if group.finished:
            self._leave_gate(group)
            del self.groups[group.request.request_id]

    # -- one step ----------------------------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """The next step's plan; empty when nothing can run before the last step's tokens are read back."""
        plan = StepPlan()
        self.blocks.start_step(plan)
        self._budget = self.limits.max_num_batched_tokens
        self._unscheduled = dict.fromkeys(self.running)
        self._decode_reserve = sum(1 for s in self.running if s.is_decoding and _can_run(s))
        self._closed_from = len(Priority)
        self._draft_budget = self._drafts_that_pay()
        for priority in Priority:
            self._rebalance(priority, plan)
            mine = [s for s in self._unscheduled if self._class_of(s) == priority]
            for sequence in (*(s for s in mine if s.is_decoding), *(s for s in mine if not s.is_decoding)):
                if sequence in self._unscheduled:
                    self._continue(sequence, plan)
            self._admit(priority, plan)
        plan.scheduled.sort(key=lambda item: item.length > 1)  # stable: decodes first, each part in order
        return plan

    def update(self, sequence: Sequence, token_id: int, *, after_draft: bool = False) -> None:
        """A sampled token was read back. after_draft: it follows a draft that held, whose keys and values stand."""
        if after_draft:
            sequence.num_computed += 1
            sequence.num_tokens += 1
            self._queue(sequence).charge(sequence, 1)
        sequence.token_ids.append(token_id)
        if sequence.status is Status.RUNNING:
            self.blocks.register(sequence)

    def end_drafts(self, sequence: Sequence, num_proposed: int, num_accepted: int) -> None:
        """A step's drafts were judged. What was computed for those that did not hold is behind `num_computed` and will
        be overwritten; pages that only they needed go back."""
        assert self.proposer is not None, "somebody proposed"
        self.proposer.note(sequence, num_proposed, num_accepted)
        if sequence.status is Status.RUNNING:
            self.blocks.trim(sequence)

    def _continue(self, sequence: Sequence, plan: StepPlan) -> None:
        """The next tokens of a running sequence, making room by preemption if pages are short."""
        del self._unscheduled[sequence]
        decoding = sequence.is_decoding
        if not _can_run(sequence):
            return
        if decoding:
            self._decode_reserve -= 1
        length = self._chunk(sequence.num_pending, self._budget - self._decode_reserve)
        if length <= 0:
            return
        self.blocks.leave_window(sequence)
        drafts = self._propose(sequence, plan) if decoding else []
        while not self.blocks.grow(sequence, sequence.num_computed + length, plan):
            victim = self._victim(lambda other: other.order > sequence.order)
            if victim is None and not decoding:
                return  # it keeps what it has: those that hold the other pages are running and will end
            self._closed_from = min(self._closed_from, self._class_of(victim or sequence))
            self._preempt(victim or sequence, plan)
            if victim is None:
                return
        self._commit(sequence, length, plan, drafts)

    def _drafts_that_pay(self) -> int:
        """Most drafts of this step: none once rows, and no longer reads of the weights, set its time."""
        if self.proposer is None or len(self.running) > self.proposer.config.disable_by_batch_size:
            return 0
        return self.limits.max_num_batched_tokens // DRAFT_SHARE

    def _propose(self, sequence: Sequence, plan: StepPlan) -> list[int]:
        """Drafts for a decode and the pages they need, as long as neither is missing to anybody else."""
        left = min(self._draft_budget, self._budget - self._decode_reserve - 1)
        left = min(left, sequence.group.max_tokens - sequence.num_outputs - 1)
        if self.proposer is None or left <= 0:
            return []
        drafts = self.proposer.propose(sequence, left)
        if not drafts:
            return []
        new_pages = len(drafts) // self.blocks.block_size + 2  # and one to copy a shared one to
        others = 2 * len(self._unscheduled)
        for pool, reserved in zip(self.blocks.pools, self._reserved(), strict=True):
            if pool.num_available - reserved < new_pages + others:
                return []
        grown = self.blocks.grow(sequence, sequence.num_computed + 1 + len(drafts), plan)
        assert grown, "the pages were counted"
        self._draft_budget -= len(drafts)
        return drafts

    def _admit(self, priority: Priority, plan: StepPlan) -> None:
        """Starts waiting requests of one class while budget, slots and pages last."""
        queue = self._queues[priority]
        while priority < self._closed_from:
            sequence = queue.next_up()
            if sequence is None or sequence.num_in_flight or self._budget <= self._decode_reserve:
                return
            if self._free_rows and self._try_admit(sequence, plan):
                continue
            if self._free_rows and self._budget_short(sequence):
                return
            victim = self._victim(lambda other: self._class_of(other) > priority)
            if victim is None:
                return
            self._preempt(victim, plan)
            self._closed_from = min(self._closed_from, self._class_of(victim))

    def _rebalance(self, priority: Priority, plan: StepPlan) -> None:
        """Holds the fairness bound: while a tenant with work waiting is served less than another by more than one
        longest prompt, and no place is free, the other's latest sequences yield until both run equally many."""
        queue = self._queues[priority]
        if not self.limits.by_priority or not len(queue):
            return
        longest = max((s.num_prompt for s in self.running if self._class_of(s) == priority), default=0)
        while (owed := queue.least_served()) is not None:
            sequence, richest = queue.next_up(), queue.most_served_running()
            if sequence is None or richest is None or sequence.num_in_flight or self._budget_short(sequence):
                return
            gap = queue.served(richest) - queue.served(owed)
            if gap <= max(longest, sequence.num_prompt) or queue.num_running(richest) <= queue.num_running(owed):
                return
            if self._free_rows and self._try_admit(sequence, plan):
                continue
            victim = self._victim(lambda s, name=richest: self._class_of(s) == priority and queue.belongs(s, name))  # type: ignore[misc]
            if victim is None:
                return
            self._preempt(victim, plan)

    def _try_admit(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Gives a waiting sequence a slot, its pages and its first chunk, or changes nothing."""
        swapped = sequence.host_pages is not None
        hit = PrefixHit(sequence.num_computed, ()) if swapped else self.blocks.match_prefix(sequence)
        length = self._chunk(sequence.num_tokens - hit.num_tokens, self._budget - self._decode_reserve)
        if (
            length <= 0
            or not self.blocks.can_admit(sequence, hit, self._reserved())
            or not self._stays_bounded(sequence)
        ):
            return False
        if swapped:
            self.blocks.swap_in(sequence, plan)
            self.blocks.leave_window(sequence)
        else:
            self.blocks.admit(sequence, hit)
        queue = self._queue(sequence)
        queue.admit(sequence)
        self._start_running(sequence, plan)
        self._note_first_run(sequence, hit)
        grown = self.blocks.grow(sequence, sequence.num_computed + length, plan)
        assert grown, "can_admit promised the pages"
        self._commit(sequence, length, plan)
        return True

    def _note_first_run(self, sequence: Sequence, hit: PrefixHit) -> None:
        group = sequence.group
        if group.cached_tokens is not None:
            return
        group.cached_tokens = hit.num_tokens
        self.prefix_queries += sequence.num_prompt
        self.prefix_hits += hit.num_tokens
        # Charged once: what a preemption makes the engine compute again is not the tenant's doing.
        self._queue(sequence).charge(sequence, sequence.num_prompt - hit.num_tokens)
        self._leave_gate(group)

    def _commit(self, sequence: Sequence, length: int, plan: StepPlan, drafts: Seq[int] = ()) -> None:
        start = sequence.num_computed
        sequence.num_computed += length
        samples = sequence.num_computed == sequence.num_tokens
        item = Scheduled(sequence, sequence.row, start, length, samples)
        plan.scheduled.append(item)
        for position, draft in enumerate(drafts, start + 1):
            plan.scheduled.append(Scheduled(sequence, sequence.row, position, 1, True, draft=draft))
        self._budget -= length + len(drafts)
        if samples:
            sequence.num_tokens += 1
            self._queue(sequence).charge(sequence, 1)
            if sequence.group.fork_pending:
                self._fork(sequence, item, plan)
        self.blocks.register(sequence)

    def _fork(self, parent: Sequence, item: Scheduled, plan: StepPlan) -> None:
        """The siblings of `n` and `best_of`: they share the prompt's pages and its last logits. One without a place
        waits, finds the prompt in the prefix cache later, and samples the same tokens: its seed is its own."""
        group = parent.group
        for index in range(1, group.num_sequences):
            child = Sequence(group, index, parent.token_ids[: parent.num_prompt], parent.num_prompt, parent.num_prompt)
            group.sequences.append(child)
            if not self._free_rows or not self._stays_bounded(child):
                child.hashes = list(parent.hashes)
                self._queue(child).put_back(child)
                continue
            self.blocks.fork(parent, child)
            self._queue(child).start_running(child)
            self._start_running(child, plan)
            child.num_computed = child.num_prompt
            child.num_tokens = child.num_prompt + 1
            self._queue(child).charge(child, 1)
            item.forks.append(child)

    # -- yielding ----------------------------------------------------------------------------------------------

    def _victim(self, allowed: Callable[[Sequence], bool]) -> Sequence | None:
        """The last in order of the running sequences that are not in this step yet and may yield."""
        return max((s for s in self._unscheduled if allowed(s)), key=lambda s: s.order, default=None)

    def _preempt(self, sequence: Sequence, plan: StepPlan) -> None:
        if sequence in self._unscheduled:
            del self._unscheduled[sequence]
            if sequence.is_decoding and _can_run(sequence):
                self._decode_reserve -= 1
        self.num_preemptions += 1
        sequence.num_preemptions += 1
        self._stop_running(sequence)
        num_pages = sum(1 for table in sequence.block_tables for page in table if page)
        swaps = sequence.num_computed > 0 and self.blocks.can_swap_out(sequence)
        if swaps and self._swap_is_cheaper(sequence.num_computed, num_pages):
            self.blocks.swap_out(sequence, plan)
        else:
            self.blocks.release(sequence)
            sequence.num_computed = 0
        sequence.status = Status.WAITING
        self._queue(sequence).put_back(sequence)
        plan.preempted.append(sequence)

    def _stays_bounded(self, sequence: Sequence) -> bool:
        """Whether admitting keeps the promise to sequences that were preempted MAX_PREEMPTIONS times."""
        together = [*self.running, sequence]
        if all(s.num_preemptions < MAX_PREEMPTIONS for s in together):
            return True
        return all(
            sum(self.blocks.resident_blocks(g, s.max_total) for s in together) <= pool.total
            for g, pool in enumerate(self.blocks.pools)
        )

    # -- small parts -------------------------------------------------------------------------------------------

    def _class_of(self, sequence: Sequence) -> Priority:
        return sequence.group.request.priority if self.limits.by_priority else Priority.STANDARD

    def _queue(self, sequence: Sequence) -> FairQueue:
        return self._queues[self._class_of(sequence)]

    def _chunk(self, pending: int, budget: int) -> int:
        """Tokens of a sequence that is `pending` behind that go into this step."""
        length = pending
        if length > 1 and self.limits.enable_chunked_prefill and len(self.running) + self.num_waiting > 1:
            length = min(length, self.limits.long_prefill_token_threshold)
        if length > budget and not self.limits.enable_chunked_prefill:
            return 0
        return min(length, budget)

    def _budget_short(self, sequence: Sequence) -> bool:
        """Whether the budget, and not slots or pages, is what keeps a waiting sequence out of this step."""
        return self._chunk(sequence.num_tokens - sequence.num_computed, self._budget - self._decode_reserve) <= 0

    def _reserved(self) -> list[int]:
        """Pages per group that running prompts were promised at admission, and a hundredth for decodes to grow."""
        reserved = [pool.total // 100 if self.running else 0 for pool in self.blocks.pools]
        for sequence in self.running:
            if sequence.num_pending > 1:
                for g, missing in enumerate(self.blocks.missing_blocks(sequence)):
                    reserved[g] += missing
        return reserved

    def _start_running(self, sequence: Sequence, plan: StepPlan) -> None:
        sequence.status = Status.RUNNING
        sequence.row = self._free_rows.pop()
        insort(self.running, sequence, key=lambda s: s.order)
        plan.admitted.append(sequence)

    def _stop_running(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._unscheduled.pop(sequence, None)
        self._free_rows.append(sequence.row)
        sequence.row = -1
        self._queue(sequence).stop_running(sequence)

    def _leave_gate(self, group: RequestGroup) -> None:
        if group.waits_in_gate:
            group.waits_in_gate = False
            self.gate.leave(len(group.request.prompt_token_ids))

    def check(self) -> None:
        """Asserts the invariants that must hold between steps."""
        waiting = [s for s in self.sequences() if s.status is Status.WAITING]
        assert len(waiting) == self.num_waiting, f"{len(waiting)} sequences wait, {self.num_waiting} are queued"
        rows = [s.row for s in self.running]
        assert len(set(rows)) == len(rows), f"a row is used twice: {rows}"
        assert len(rows) + len(self._free_rows) == self.limits.max_num_seqs, "a row is lost"
        self.blocks.check(self.sequences())


def _can_run(sequence: Sequence) -> bool:
    """Whether there is something to compute that does not wait for a read-back."""
    return sequence.num_pending > 0 and not (sequence.needs_host_tokens and sequence.num_in_flight)

"""`EngineCore`: requests in, token ids out. `step()` is schedule, submit, collect, process; no text, no threads.

With `max_in_flight` 1 the next step is scheduled and submitted before the last one's tokens are read back (a GPU works
while the host thinks); with 0 every step is read back at once (a CPU has nobody to overlap with).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from random import Random

import msgspec

from engine.core_output import CoreOutput, TokenScore
from engine.cpu_runner import CpuRunner
from engine.model_runner import ModelRunner, PendingStep, StepOutput
from engine.queue_gate import QueueGate
from engine.sampler import FAILED, Logprobs
from engine.scheduler import Scheduler
from engine.sequence import RequestGroup, Sequence, Status
from engine.step_plan import SampledRow, StepPlan, sampled_rows
from engine.swap_cost import SwapCost
from engine.types import EngineRequest, EngineStats, FinishReason, ModelInfo
from engine.validation import RequestLimits, validate_request

logger = logging.getLogger(__name__)

NOTHING_TO_SAMPLE = "the model gave no finite logits, or the grammar left no token to choose from"
MAX_FAILED_STEPS = 3


@dataclass(frozen=True)
class AcceptedRequest:
    """A valid request that has its place in the queue."""

    request: EngineRequest
    max_tokens: int


@dataclass
class _Unsent:
    """Tokens of a sequence that wait for `stream_interval` to fill up."""

    token_ids: list[int] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)
    prompt_scores: list[TokenScore] | None = None
    sent_any: bool = False


class EngineCore:
    """All methods but `accept` belong to one thread. `clock` gives seconds, monotonic."""

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Scheduler,
        *,
        info: ModelInfo,
        limits: RequestLimits,
        gate: QueueGate,
        swap_cost: SwapCost,
        seed: int = 0,
        max_in_flight: int = 0,
        stream_interval: int = 1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.runner = runner
        self.scheduler = scheduler
        self.info = info
        self.limits = limits
        self._gate = gate
        self._swap_cost = swap_cost
        self._seeds = Random(seed)  # noqa: S311 - seeds of samplers, not secrets
        self._max_in_flight = max_in_flight
        self._stream_interval = stream_interval
        self._clock = clock
        self._on_progress: Callable[[], None] = lambda: None
        self._in_flight: deque[PendingStep] = deque()
        self._unsent: dict[Sequence, _Unsent] = {}
        self._step_began: float | None = None
        self._idle_since = clock()
        self._failed_steps = 0
        self._stats = EngineStats()

    # -- requests ----------------------------------------------------------------------------------------------

    def validate(self, request: EngineRequest) -> int:
        """Returns the request's max_tokens as it will run; from any thread. Raises: InvalidRequest."""
        max_tokens = validate_request(request, self.limits)
        self.runner.grammars.validate(request.sampling)
        return max_tokens

    def accept(self, request: EngineRequest) -> AcceptedRequest:
        """Validates and takes a place in the queue, from any thread, without waiting for a step.

        Raises: InvalidRequest, QueueFull.
        """
        max_tokens = self.validate(request)
        self._gate.enter(len(request.prompt_token_ids))
        return AcceptedRequest(request, max_tokens)

    def give_up(self, accepted: AcceptedRequest) -> None:
        """Returns the place of an accepted request that is never added; from any thread."""
        self._gate.leave(len(accepted.request.prompt_token_ids))

    def add(self, accepted: AcceptedRequest) -> None:
        """Queues an accepted request. Raises: ValueError on an id in use."""
        sampling = accepted.request.sampling
        seed = self._seeds.getrandbits(63) if sampling.seed is None else sampling.seed
        try:
            self.scheduler.add(accepted.request, max_tokens=accepted.max_tokens, seed=seed)
        except ValueError:
            self.give_up(accepted)
            raise

    def abort(self, request_id: str) -> list[CoreOutput]:
        """Ends all sequences of a request; empty for an unknown or ended one."""
        group = self.scheduler.groups.get(request_id)
        if group is None:
            return []
        unborn = range(len(group.sequences), group.num_sequences)
        group.num_sequences = len(group.sequences)  # nothing is left to fork
        outputs = []
        for sequence in list(group.sequences):
            if sequence.status is not Status.FINISHED:
                outputs.append(self._end(sequence, FinishReason.ABORT))
        outputs[-1:-1] = [self._unborn_output(group, index) for index in unborn]
        return outputs

    def stop_sequence(self, request_id: str, index: int) -> None:
        """A stop string was found in the text outside the core: the sequence ends without another output."""
        group = self.scheduler.groups.get(request_id)
        for sequence in group.sequences if group else ():
            if sequence.index == index and sequence.status is not Status.FINISHED:
                self._end(sequence, FinishReason.STOP)

    def report_progress(self, on_progress: Callable[[], None]) -> None:
        """Has `on_progress` called, on the thread that steps, wherever a step has come further: at its phases, and
        within the model where the runner can tell."""
        self._on_progress = on_progress
        if isinstance(self.runner, CpuRunner):
            self.runner.on_progress = on_progress

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or bool(self._in_flight)

    # -- one step ----------------------------------------------------------------------------------------------

    def step(self) -> list[CoreOutput]:
        """One turn of the loop. Raises: RuntimeError when the device fails step after step."""
        now = self._clock()
        if self._step_began is None:
            self._stats.idle_us += int((now - self._idle_since) * 1e6)
            self._step_began = now
        plan = self.scheduler.schedule()
        outputs = self._submit(plan) if plan.scheduled or plan.swap_out or plan.preempted else []
        while self._in_flight and (len(self._in_flight) > self._max_in_flight or not plan.scheduled):
            self._on_progress()
            outputs += self._collect(self._in_flight.popleft())
        if not self.has_work:
            self._step_began, self._idle_since = None, self._clock()
        return outputs

    def _submit(self, plan: StepPlan) -> list[CoreOutput]:
        try:
            self._in_flight.append(self.runner.submit(plan))
        except Exception as exc:  # noqa: BLE001 - the loop survives what one step's requests trigger
            return self._fail_step(plan, exc)
        return []

    def _collect(self, pending: PendingStep) -> list[CoreOutput]:
        try:
            output = self.runner.collect(pending)
        except Exception as exc:  # noqa: BLE001 - as above
            return self._fail_step(pending.plan, exc)
        self._failed_steps = 0
        self._account(pending.plan)
        return self._process(pending, output)

    def _process(self, pending: PendingStep, output: StepOutput) -> list[CoreOutput]:
        outputs: list[CoreOutput] = []
        for sequence, found in output.prompt_logprobs.items():
            unsent = self._unsent.setdefault(sequence, _Unsent())
            unsent.prompt_scores = unsent.prompt_scores or []
            unsent.prompt_scores.extend(map(_score, found))
        position = 0
        for rows in sampled_rows(pending.plan):
            tokens = output.token_ids[position : position + len(rows)]
            scores: list[Logprobs | None] = [output.logprobs.get(position + i) for i in range(len(rows))]
            position += len(rows)
            outputs += self._take(rows, tokens, scores)
        return outputs

    def _take(self, rows: Seq[SampledRow], tokens: Seq[int], scores: Seq[Logprobs | None]) -> list[CoreOutput]:
        """One sequence's tokens of a step: one, and after each draft that is what was sampled in its place one more."""
        sequence = rows[0].sequence
        num_taken = 0
        ended: CoreOutput | None = None
        for row, token_id, score in zip(rows, tokens, scores, strict=True):
            if sequence.status is Status.FINISHED:
                break  # aborted, or stopped by its text, while the step ran; or ended by the token before
            if num_taken and row.draft != tokens[num_taken - 1]:
                break
            ended = self._take_token(sequence, token_id, score, after_draft=num_taken > 0)
            num_taken += 1
        if len(rows) > 1:
            self.scheduler.end_drafts(sequence, len(rows) - 1, max(0, num_taken - 1))
        if ended is not None:
            return [ended]
        unsent = self._unsent.get(sequence)
        if num_taken and unsent and (not unsent.sent_any or len(unsent.token_ids) >= self._stream_interval):
            return [self._output(sequence)]
        return []

    def _take_token(
        self, sequence: Sequence, token_id: int, score: Logprobs | None, *, after_draft: bool
    ) -> CoreOutput | None:
        """Returns the sequence's end, if this token is."""
        if token_id == FAILED or not self.runner.grammars.advance(sequence, token_id):
            logger.error("request %s failed: %s", sequence.group.request.request_id, NOTHING_TO_SAMPLE)
            return self._end(sequence, FinishReason.ERROR, error=NOTHING_TO_SAMPLE)
        self.scheduler.update(sequence, token_id, after_draft=after_draft)
        self._stats.generation_tokens += 1
        unsent = self._unsent.setdefault(sequence, _Unsent())
        unsent.token_ids.append(token_id)
        if score is not None:
            unsent.scores.append(_score(score))
        reason, stop_reason = self._ending(sequence, token_id)
        if reason is None:
            return None
        by_token = reason is FinishReason.STOP and self._is_end_token(sequence, token_id)
        return self._end(sequence, reason, stop_reason, ends_by_token=by_token)

    def _is_end_token(self, sequence: Sequence, token_id: int) -> bool:
        sampling = sequence.group.request.sampling
        eos = token_id in self.info.eos_token_ids and not sampling.ignore_eos
        return eos or token_id in sampling.stop_token_ids

    def _ending(self, sequence: Sequence, token_id: int) -> tuple[FinishReason | None, int | None]:
        sampling = sequence.group.request.sampling
        if token_id in sampling.stop_token_ids:
            return FinishReason.STOP, token_id
        if self._is_end_token(sequence, token_id):
            return FinishReason.STOP, None
        if self.runner.grammars.is_complete(sequence):
            return FinishReason.STOP, None
        if len(sequence.token_ids) - sequence.num_prompt >= sequence.group.max_tokens:
            return FinishReason.LENGTH, None
        return None, None

    # -- endings and outputs -----------------------------------------------------------------------------------

    def _end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        stop_reason: str | int | None = None,
        error: str | None = None,
        *,
        ends_by_token: bool = False,
    ) -> CoreOutput:
        self.scheduler.finish(sequence, reason, stop_reason, condemn=error is not None)
        self.runner.grammars.forget(sequence)
        output = self._output(sequence)
        output.finish_reason, output.stop_reason, output.error = reason, stop_reason, error
        self._unsent.pop(sequence, None)
        self._stats.finished[reason.value] = self._stats.finished.get(reason.value, 0) + 1
        output.request_done = sequence.group.finished
        output.ends_by_token = ends_by_token
        return output

    def _output(self, sequence: Sequence) -> CoreOutput:
        unsent = self._unsent.setdefault(sequence, _Unsent())
        output = CoreOutput(
            request_id=sequence.group.request.request_id,
            index=sequence.index,
            token_ids=unsent.token_ids,
            prompt_tokens=sequence.num_prompt,
            cached_tokens=sequence.group.cached_tokens or 0,
            scores=unsent.scores or None,
            prompt_scores=unsent.prompt_scores,
            engine_us=sequence.group.engine_us,
        )
        self._unsent[sequence] = _Unsent(sent_any=True)
        return output

    def _unborn_output(self, group: RequestGroup, index: int) -> CoreOutput:
        """The end of a sibling that was to be forked later."""
        return CoreOutput(
            request_id=group.request.request_id,
            index=index,
            token_ids=[],
            prompt_tokens=len(group.request.prompt_token_ids),
            cached_tokens=group.cached_tokens or 0,
            finish_reason=FinishReason.ABORT,
        )

    def _fail_step(self, plan: StepPlan, exc: Exception) -> list[CoreOutput]:
        """A step raised: its requests fail, the others go on. Who among them caused it cannot be told."""
        logger.exception("a step of %d sequences failed", len(plan.scheduled), exc_info=exc)
        self._failed_steps += 1
        if self._failed_steps >= MAX_FAILED_STEPS:
            raise RuntimeError(f"{self._failed_steps} steps in a row failed, the last with: {exc}") from exc
        message = f"the engine failed while running this request: {type(exc).__name__}"
        doomed = [s for item in plan.scheduled for s in (item.sequence, *item.forks)]
        # What was to be moved out may not have been: its host pages cannot be trusted. Nor was anything zeroed.
        doomed += [sequence for sequence in plan.preempted if sequence.host_pages is not None]
        for group, page in plan.zero:
            self.scheduler.blocks.pools[group].pages_to_zero.append(page)
        return [self._end(s, FinishReason.ERROR, error=message) for s in doomed if s.status is not Status.FINISHED]

    # -- figures -----------------------------------------------------------------------------------------------

    def _account(self, plan: StepPlan) -> None:
        """Shares the step's wall time among its requests by their tokens; the shares sum to the step exactly."""
        now = self._clock()
        seconds = now - (self._step_began if self._step_began is not None else now)
        self._step_began = now
        busy_us = int(seconds * 1e6)
        num_tokens = plan.num_tokens
        self._stats.num_steps += 1
        self._stats.busy_us += busy_us
        prefill = sum(max(0, min(i.start + i.length, i.sequence.num_prompt) - i.start) for i in plan.scheduled)
        self._stats.prompt_tokens += prefill
        self._swap_cost.note_step(prefill, num_tokens, seconds)
        self._gate.note_rate(num_tokens, seconds)
        live = [item for item in plan.scheduled if not item.sequence.group.finished]
        total, before = sum(item.length for item in live), 0
        for item in live:
            after = before + item.length
            item.sequence.group.engine_us += busy_us * after // total - busy_us * before // total
            before = after

    def stats(self) -> EngineStats:
        """A fresh reading; safe from any thread (plain integers)."""
        stats, pools = self._stats, self.scheduler.blocks.pools
        stats.num_running, stats.num_waiting = len(self.scheduler.running), self.scheduler.num_waiting
        stats.num_preemptions = self.scheduler.num_preemptions
        if (proposer := self.scheduler.proposer) is not None:
            stats.num_drafts, stats.num_draft_tokens = proposer.num_drafts, proposer.num_draft_tokens
            stats.num_accepted_tokens = proposer.num_accepted_tokens
        stats.prefix_cache_queries, stats.prefix_cache_hits = self.scheduler.prefix_queries, self.scheduler.prefix_hits
        stats.kv_blocks_total = sum(pool.total for pool in pools)
        stats.kv_blocks_free = sum(pool.num_free for pool in pools)
        stats.kv_blocks_cached = sum(pool.num_cached for pool in pools)
        stats.kv_blocks_referenced = sum(pool.num_referenced for pool in pools)
        return msgspec.structs.replace(stats, finished=dict(stats.finished))


def _score(item: Logprobs) -> TokenScore:
    return TokenScore(item.token_id, item.logprob, item.rank, tuple(item.top_ids), tuple(item.top_logprobs))

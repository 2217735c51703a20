"""Runs jobs through a core and measures: continuous batching, and two older ways of batching on the same engine."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from engine.bench.workload import Job
from engine.core import EngineCore
from engine.types import EngineRequest, SamplingParams

Progress = Callable[[int], None]
_SALT = b"weir-bench-salt"


@dataclass
class Measurement:
    """One run. Times in seconds from the start of the run, when every job is there: e2e is a job's last token, ttft its
    first. slots_*: token slots of the KV cache, summed over steps: allocated, and those that ever held a token."""

    seconds: float = 0.0
    output_tokens: int = 0
    prompt_tokens: int = 0
    prefilled_tokens: int = 0
    ttft_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)
    busy_s: float = 0.0
    preemptions: int = 0
    slots_allocated: int = 0
    slots_filled: int = 0
    peak_slots: int = 0

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds

    @property
    def prompt_tokens_per_s(self) -> float:
        return self.prompt_tokens / self.seconds

    @property
    def kv_waste(self) -> float:
        """Share of allocated slots that held no token, over the whole run."""
        return 1 - self.slots_filled / self.slots_allocated if self.slots_allocated else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def run_continuous(core: EngineCore, jobs: Sequence[Job], progress: Progress = lambda _n: None) -> Measurement:
    """Everything is queued at once; a slot that becomes free is filled in the next step."""
    run = _Run(core, progress)
    run.batch([(job, job.num_outputs) for job in jobs])
    return run.done()


def run_paged(core: EngineCore, jobs: Sequence[Job], progress: Progress = lambda _n: None) -> Measurement:
    """Paged memory, request-level batching: the next batch starts when the last one's longest answer ends."""
    run = _Run(core, progress)
    for group in _batches(jobs, static_rows(core, jobs)):
        run.batch([(job, job.num_outputs) for job in group])
    return run.done()


def run_static(core: EngineCore, jobs: Sequence[Job], progress: Progress = lambda _n: None) -> Measurement:
    """Static batching: prompts padded to the batch's longest, all rows run until its longest answer ends, and every
    row holds contiguous memory for both. Tokens beyond what a job asked for are made and not counted."""
    run = _Run(core, progress)
    for group in _batches(jobs, static_rows(core, jobs)):
        length = max(len(job.prompt) for job in group)
        outputs = max(job.num_outputs for job in group)
        padded = [Job([job.prompt[0]] * (length - len(job.prompt)) + job.prompt, job.num_outputs) for job in group]
        run.reserved = len(group) * (length + outputs)
        run.padding = sum(length - len(job.prompt) for job in group)
        run.batch([(job, outputs) for job in padded])
    result = run.done()
    result.prompt_tokens = sum(len(job.prompt) for job in jobs)
    return result


def static_rows(core: EngineCore, jobs: Sequence[Job]) -> int:
    """Rows of a batch whose memory is reserved ahead: each row takes the workload's longest prompt and answer, out of
    the same memory that the pages of continuous batching lie in."""
    longest = max(len(job.prompt) for job in jobs) + max(job.num_outputs for job in jobs)
    blocks = core.scheduler.blocks
    slots = min(pool.total for pool in blocks.pools) * blocks.block_size
    return max(1, min(core.scheduler.limits.max_num_seqs, slots // longest))


class _Run:
    """One measurement under way. `reserved` slots, when set, stand for what static batching would allocate."""

    def __init__(self, core: EngineCore, progress: Progress) -> None:
        self._core = core
        self._progress = progress
        self._numbers = itertools.count()
        self.reserved = self.padding = 0
        for pool in core.scheduler.blocks.pools:
            pool.reset_cache()
        before = core.stats()
        self._busy_us, self._preemptions, self._prefilled = before.busy_us, before.num_preemptions, before.prompt_tokens
        self._result = Measurement()
        self._start = time.perf_counter()

    def batch(self, jobs: list[tuple[Job, int]]) -> None:
        """Runs jobs to their end, each for the given number of tokens; counts what the job itself asked for."""
        core, result = self._core, self._result
        wanted: dict[str, int] = {}
        seen: dict[str, int] = {}
        for job, num_tokens in jobs:
            name = f"bench-{next(self._numbers)}"
            wanted[name], seen[name] = job.num_outputs, 0
            sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
            request = EngineRequest(
                request_id=name, prompt_token_ids=job.prompt, sampling=sampling, cache_salt=_SALT, tenant="bench"
            )
            core.add(core.accept(request))
            result.prompt_tokens += len(job.prompt)
        while core.has_work:
            outputs = core.step()
            now = time.perf_counter() - self._start
            for output in outputs:
                name = output.request_id
                if not seen[name] and output.token_ids:
                    result.ttft_s.append(now)
                before, seen[name] = seen[name], seen[name] + len(output.token_ids)
                result.output_tokens += max(0, min(wanted[name], seen[name]) - before)
                if before < wanted[name] <= seen[name]:
                    result.e2e_s.append(now)
                    self._progress(1)
            self._count_slots()

    def _count_slots(self) -> None:
        scheduler = self._core.scheduler
        pools, size = scheduler.blocks.pools, scheduler.blocks.block_size
        filled = sum(s.num_computed for s in scheduler.running) * len(pools) - self.padding
        allocated = self.reserved or sum(pool.num_referenced for pool in pools) * size
        # Shared pages hold more tokens than slots: a prefix counts once for every sequence that reads it.
        self._result.slots_filled += max(0, min(filled, allocated))
        self._result.slots_allocated += allocated if scheduler.running else 0
        self._result.peak_slots = max(self._result.peak_slots, allocated)

    def done(self) -> Measurement:
        result, stats = self._result, self._core.stats()
        result.seconds = time.perf_counter() - self._start
        result.busy_s = (stats.busy_us - self._busy_us) / 1e6
        result.preemptions = stats.num_preemptions - self._preemptions
        result.prefilled_tokens = stats.prompt_tokens - self._prefilled
        return result


def _batches(jobs: Sequence[Job], size: int) -> Iterator[Sequence[Job]]:
    for start in range(0, len(jobs), size):
        yield jobs[start : start + size]

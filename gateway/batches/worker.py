"""Works on batches: validates, answers lines side by side, writes the files. Any gateway can go on where one died.

A line's request id is made of the batch's id and the line's number, so the ledger takes a line asked twice as one: the
same row again is no row, and what the reaper booked for a dead gateway is corrected to what the line really took.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from billing.principal import Principal
from gateway.batches.runner import LineRunner, TryLater, encode
from gateway.batches.store import BatchStore, LeaseLost
from gateway.batches.validation import MAX_ERRORS, Checked, LineChecker
from gateway.errors import NotFound
from gateway.files.store import FileStore
from gateway.schemas.batches import InputLine, LineError, LineResponse, OutputLine
from gateway.tables.batches import Batch, BatchLine, BatchStatus

POLL_S = 2.0
RENEW_S = 10.0
MAX_WAIT_S = 30.0
INSERT_LINES = 500
RESULT_LINES = 100
_RUNNING = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)
log = logging.getLogger(__name__)


class Stopped(Exception):
    """The batch is to end now; `status` is what it ends as."""

    def __init__(self, status: BatchStatus) -> None:
        super().__init__(status)
        self.status = status


class BatchWorker:
    """One a process. `concurrency` lines are asked at a time; the engine runs them behind all other work."""

    def __init__(self, store: BatchStore, files: FileStore, runner: LineRunner, *, concurrency: int = 16) -> None:
        self._store = store
        self._files = files
        self._runner = runner
        self._concurrency = concurrency
        self._nudged = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def nudge(self) -> None:
        """There may be work: do not wait for the next poll."""
        self._nudged.set()

    def start(self) -> None:
        """Begins working in a task of the running loop."""
        self._task = asyncio.create_task(self._work(), name="batches")

    async def stop(self) -> None:
        """Breaks off what is worked on, gives its lease back and ends. A look into SQL is waited for, not cut off."""
        self._stopping.set()
        self._nudged.set()
        if self._task is not None:
            await self._task

    async def _work(self) -> None:
        """One batch after the other."""
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._nudged.wait()
            self._nudged.clear()
            if self._stopping.is_set():
                return
            try:
                while await self.work_once():
                    pass
                await self._files.sweep()
            except Exception:  # the worker's supervisor: SQL may be away; the lease runs out and the batch goes on
                log.exception("batches could not be worked on; trying again in %.0f s", POLL_S)

    async def work_once(self) -> bool:
        """Takes one batch and brings it to its end; False when there is none to take."""
        batch = await self._store.claim()
        if batch is None:
            return False
        working = asyncio.create_task(self._advance(batch), name=f"batch-{batch.id}")
        keeping = asyncio.create_task(self._keep_lease(batch.id), name=f"lease-{batch.id}")
        stopping = asyncio.create_task(self._stopping.wait(), name="stopping")
        try:
            await asyncio.wait({working, keeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done() and not working.done():
                await _cancelled(working, keeping)
                await self._store.release(batch.id)
                return False
            await (keeping if keeping.done() else working)
        except LeaseLost:
            log.warning("batch %s was taken over by another gateway", batch.id)
        finally:
            await _cancelled(working, keeping, stopping)
        return True

    async def _keep_lease(self, batch_id: str) -> None:
        """Until cancelled. Raises: LeaseLost."""
        while True:
            await asyncio.sleep(RENEW_S)
            await self._store.renew(batch_id)

    async def _advance(self, batch: Batch) -> None:
        """From whatever state the batch is in to its end."""
        principal = msgspec.convert(batch.principal, Principal)
        ending = BatchStatus.COMPLETED
        try:
            if batch.status is BatchStatus.VALIDATING and not await self._validate(batch):
                return
            if batch.status is not BatchStatus.FINALIZING:
                await self._run_lines(batch, principal)
        except Stopped as stopped:
            ending = stopped.status
        await self._finish(batch, ending)

    # -- validating

    async def _validate(self, batch: Batch) -> bool:
        """Keeps the lines; False when the batch failed for what is wrong with them."""
        await self._store.forget_lines(batch.id)
        errors: list[LineError] = []
        good: list[tuple[int, InputLine]] = []
        total = 0
        async for checked in self._checked(batch):
            if checked.error is not None:
                errors.append(checked.error)
                if len(errors) >= MAX_ERRORS:
                    break
            elif checked.line is not None and not errors:
                good.append((checked.number, checked.line))
                total += 1
                if len(good) == INSERT_LINES:
                    await self._store.add_lines(batch.id, good)
                    good = []
        if errors:
            plain = [msgspec.to_builtins(error) for error in errors]
            await self._store.advance(batch.id, BatchStatus.FAILED, errors=plain)
            await self._store.drop_answers(batch.id)
            return False
        if good:
            await self._store.add_lines(batch.id, good)
        await self._store.advance(batch.id, BatchStatus.IN_PROGRESS, was=(BatchStatus.VALIDATING,), total=total)
        return True

    async def _checked(self, batch: Batch) -> AsyncIterator[Checked]:
        try:
            await self._files.get(batch.tenant_id, batch.project_id, batch.input_file_id)
        except NotFound:
            gone = LineError(code="invalid_input_file", message="The input file is gone.", param="input_file_id")
            yield Checked(0, error=gone)
            return
        async for checked in LineChecker(batch.endpoint).check(self._files.lines(batch.input_file_id)):
            yield checked

    # -- running

    async def _run_lines(self, batch: Batch, principal: Principal) -> None:
        """All open lines, some at a time. Raises: Stopped (cancelled, expired, key revoked), LeaseLost."""
        running: set[asyncio.Task[None]] = set()
        after = 0
        try:
            while True:
                await self._check(batch, principal)
                lines = await self._store.open_lines(batch.id, after=after, limit=self._concurrency - len(running))
                if not lines and not running:
                    return
                for line in lines:
                    running.add(asyncio.create_task(self._run_line(batch, principal, line), name=f"line-{line.number}"))
                    after = line.number
                done, running = await asyncio.wait(running, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            await _cancelled(*running)

    async def _check(self, batch: Batch, principal: Principal) -> None:
        now = await self._store.renew(batch.id)
        if now.status is BatchStatus.CANCELLING:
            raise Stopped(BatchStatus.CANCELLED)
        if self._store.is_expired(now):
            raise Stopped(BatchStatus.EXPIRED)
        if not await self._store.may_go_on(principal):
            raise Stopped(BatchStatus.CANCELLED)

    async def _run_line(self, batch: Batch, principal: Principal, line: BatchLine) -> None:
        request_id = f"req_{batch.id}_{line.number}"
        while True:
            try:
                response = await self._runner.run(batch.endpoint, principal, request_id, line.body)
                break
            except TryLater as later:
                await asyncio.sleep(min(later.wait_s, MAX_WAIT_S))
        ok = response.status_code == 200
        await self._store.answer(batch.id, line.number, _output(request_id, line, response), ok=ok)

    # -- the end

    async def _finish(self, batch: Batch, ending: BatchStatus) -> None:
        if ending is BatchStatus.COMPLETED:
            await self._store.advance(batch.id, BatchStatus.FINALIZING, was=_RUNNING)
        if ending is BatchStatus.EXPIRED:
            await self._expire_lines(batch)
        now = await self._store.renew(batch.id)
        if now.status is BatchStatus.CANCELLING:
            ending = BatchStatus.CANCELLED
        output = await self._write(batch, ok=True)
        errors = await self._write(batch, ok=False)
        await self._store.advance(batch.id, ending, output_file_id=output, error_file_id=errors)
        await self._store.drop_answers(batch.id)

    async def _expire_lines(self, batch: Batch) -> None:
        while lines := await self._store.open_lines(batch.id, after=0, limit=RESULT_LINES):
            for line in lines:
                error = LineError(
                    code="batch_expired",
                    message="This request could not be executed before the completion window expired.",
                )
                result = OutputLine(
                    id=f"req_{batch.id}_{line.number}", custom_id=line.custom_id, response=None, error=error
                )
                await self._store.answer(batch.id, line.number, encode(result), ok=False)

    async def _write(self, batch: Batch, *, ok: bool) -> str | None:
        """The output or error file's id; None where it would be empty."""
        if not await self._store.results(batch.id, ok=ok, after=0, limit=1):
            return None
        file = await self._files.write(
            batch.tenant_id,
            batch.project_id,
            filename=f"{batch.id}_{'output' if ok else 'error'}.jsonl",
            purpose="batch_output",
            content=self._results(batch.id, ok=ok),
        )
        return file.id

    async def _results(self, batch_id: str, *, ok: bool) -> AsyncIterator[bytes]:
        after = 0
        while lines := await self._store.results(batch_id, ok=ok, after=after, limit=RESULT_LINES):
            after = lines[-1].number
            yield b"".join((line.result or "").encode() + b"\n" for line in lines)


def _output(request_id: str, line: BatchLine, response: LineResponse) -> bytes:
    return encode(OutputLine(id=f"batch_{request_id}", custom_id=line.custom_id, response=response))


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

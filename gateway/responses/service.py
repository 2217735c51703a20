"""What the responses endpoints do: build the call, run it now or in the background, keep what is to be kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from billing.ids import new_id
from billing.principal import Principal
from gateway.calls import Call, Endpoint
from gateway.chat_calls import ChatCalls
from gateway.errors import GatewayError, InvalidRequest
from gateway.intake import Intake, Origin
from gateway.pipeline import Pipeline
from gateway.presenters.responses import ResponsePresenter, failed, skeleton
from gateway.responses.event_log import EventLog
from gateway.responses.items import with_ids
from gateway.responses.store import ResponseStore
from gateway.responses.translate import chat_request, input_items, own_names
from gateway.schemas.responses import Item, Response, ResponsesRequest
from gateway.streaming import named_frame
from gateway.tables.responses import OPEN, StoredResponse

BEAT_S = 5.0
POLL_S = 0.5
CANCEL_WAIT_S = 5.0
log = logging.getLogger(__name__)


class Prepared(msgspec.Struct, kw_only=True):
    """A request that was found good: its call, the response to be filled, its own items."""

    call: Call
    response: Response
    items: list[Item]


class ResponseService:
    """One a process. `store_by_default` decides where a request does not say."""

    def __init__(
        self,
        store: ResponseStore,
        chat_calls: ChatCalls,
        pipeline: Pipeline,
        *,
        timeout_s: float,
        store_by_default: bool = True,
    ) -> None:
        self.store = store
        self._chat_calls = chat_calls
        self._pipeline = pipeline
        self._timeout_s = timeout_s
        self._store_by_default = store_by_default
        self._running: dict[str, asyncio.Task[Any]] = {}
        self._logs: dict[str, EventLog] = {}  # of those that run here and are streamed

    async def prepare(self, origin: Origin, data: ResponsesRequest) -> Prepared:
        """Raises: GatewayError for everything that is wrong with the request itself."""
        stored = self._store_by_default if data.store is None else data.store
        if data.background and data.store is False:
            raise InvalidRequest("background=true needs store=true.", param="background", code="invalid_value")
        history: list[Item] = []
        if data.previous_response_id is not None:
            history = await self.store.history(origin.scope["state"]["principal"], data.previous_response_id)
        with own_names():
            chat = chat_request(data, history)
            intake = Intake(origin, Endpoint.RESPONSES, chat, timeout_s=self._timeout_s)
            call = await self._chat_calls.build(intake, chat)
        response_id = "resp_" + call.request_id.removeprefix("req_")
        return Prepared(
            call=call,
            response=skeleton(data, response_id, service_tier=call.service_tier, store=stored or bool(data.background)),
            items=with_ids(input_items(data), new_id),
        )

    def presenter(self, prepared: Prepared) -> ResponsePresenter:
        """For an answer that is given now. Raises: ModelNotFound."""
        exchange = self._pipeline.begin(prepared.call)

        async def keep(response: Response) -> None:
            await self._add(prepared, response)

        return ResponsePresenter(prepared.response, exchange, keep if prepared.response.store else None)

    async def _add(self, prepared: Prepared, response: Response, *, streamed: bool = False) -> None:
        principal, end_user = prepared.call.principal, prepared.call.attribution.end_user
        plain = msgspec.to_builtins(response)
        await self.store.add(principal, plain, prepared.items, end_user=end_user, streamed=streamed)

    # -- in the background

    async def start(self, prepared: Prepared) -> Response:
        """Keeps the response as queued and works on it in a task. Raises: ModelNotFound."""
        return await self._start(prepared, None)

    async def start_streamed(self, prepared: Prepared) -> AsyncGenerator[bytes, None]:
        """The same, with all its events as they come; who stops reading stops nothing. Raises: ModelNotFound."""
        log = EventLog()
        await self._start(prepared, log)
        return log.follow(0)

    async def _start(self, prepared: Prepared, log: EventLog | None) -> Response:
        exchange = self._pipeline.begin(prepared.call)
        response = prepared.response
        response.status = "queued"
        await self._add(prepared, response, streamed=log is not None)
        queued = msgspec.structs.replace(response)
        presenter = ResponsePresenter(response, exchange)
        if log is not None:
            self._logs[response.id] = log
            presenter.log_state(log, "created", "queued")
        task = self._pipeline.background.spawn(self._run(presenter, log), name=f"response-{response.id}")
        self._running[response.id] = task
        return queued

    async def _run(self, presenter: ResponsePresenter, log: EventLog | None) -> None:
        response = presenter.response
        try:
            response.status = "in_progress"
            if not await self.store.advance(msgspec.to_builtins(response)):
                return  # cancelled or deleted before it began
            try:
                await (presenter.whole() if log is None else presenter.log_into(log))
            except GatewayError as exc:
                failed(response, exc.code or "server_error", exc.message)
            await self._close(presenter, log)
        finally:
            self._running.pop(response.id, None)
            if log is not None:
                log.close()
                self._logs.pop(response.id, None)

    async def _close(self, presenter: ResponsePresenter, log: EventLog | None) -> None:
        """Its end is kept before a reader hears of it."""
        plain = msgspec.to_builtins(presenter.response)
        if log is None:
            await self.store.advance(plain)
            return
        last = presenter.last_frame()
        if await self.store.advance(plain, [*log.frames, last]):
            log.append(last)

    async def events(self, principal: Principal, response_id: str, start: int) -> AsyncGenerator[bytes, None]:
        """The frames of a response streamed from the background, from sequence number `start` on.

        Those of one that runs on this gateway come as they are made, those of another gateway's once it has ended.
        Raises: NotFound; InvalidRequest when it was not asked for as a stream.
        """
        row = await self.store.get(principal, response_id)
        if row.events is None:
            raise InvalidRequest(
                "Only a response that was created with 'background' and 'stream' can be streamed.",
                param="stream",
                code="invalid_value",
            )
        log = self._logs.get(response_id)
        return log.follow(start) if log is not None else self._kept_events(principal, row, start)

    async def _kept_events(self, principal: Principal, row: StoredResponse, start: int) -> AsyncGenerator[bytes, None]:
        while row.status in OPEN:
            await asyncio.sleep(POLL_S)
            row = await self.store.get(principal, row.id)
        frames = row.events or []
        if not frames:  # cancelled, or its gateway died: nothing but its end is known
            yield _end_of(row.response, str(row.status), start)
        for frame in frames[start:]:
            yield frame.encode()

    async def cancel(self, principal: Principal, response_id: str) -> StoredResponse:
        """Ends an open response in the background, on whatever gateway it runs. Raises: NotFound, InvalidRequest."""
        row = await self.store.get(principal, response_id)
        if not row.background:
            raise InvalidRequest("Cannot cancel a synchronous response.", code="invalid_value")
        if row.status in OPEN and await self.store.advance({**row.response, "status": "cancelled"}):
            if (log := self._logs.get(response_id)) is not None:
                log.append(_end_of(row.response, "cancelled", len(log.frames)))
            task = self._running.get(response_id)
            if task is not None:
                task.cancel()
                await asyncio.wait({task}, timeout=CANCEL_WAIT_S)
        return await self.store.get(principal, response_id)

    async def watch(self) -> None:
        """Until cancelled: renews leases, stops what was cancelled elsewhere, clears away what is old or lost."""
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                await self.beat()
            except Exception:  # the watcher's supervisor: SQL may be away for a while
                log.exception("responses could not be looked after; trying again in %.0f s", BEAT_S)

    async def beat(self) -> None:
        """One round of `watch`."""
        mine = list(self._running)
        for response_id in set(mine) - await self.store.renew(mine):
            if (task := self._running.get(response_id)) is not None:
                task.cancel()
        for plain in await self.store.sweep():
            lost = failed(msgspec.convert(plain, Response), "server_error", "The server working on it was stopped.")
            await self.store.advance(msgspec.to_builtins(lost))

    async def delete(self, principal: Principal, response_id: str) -> None:
        """Raises: NotFound."""
        await self.store.delete(principal, response_id)
        if (task := self._running.get(response_id)) is not None:
            task.cancel()


def _end_of(response: dict[str, Any], status: str, number: int) -> bytes:
    """The last event of a response that did not come to an end of its own."""
    kind = f"response.{status}"
    return named_frame(kind, {"type": kind, "sequence_number": number, "response": {**response, "status": status}})

"""What the responses endpoints do: build the call, run it now or in the background, keep what is to be kept."""

from __future__ import annotations

import asyncio
import logging
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
from gateway.responses.items import with_ids
from gateway.responses.store import ResponseStore
from gateway.responses.translate import chat_request, input_items, own_names
from gateway.schemas.responses import Item, Response, ResponsesRequest
from gateway.tables.responses import OPEN, StoredResponse

BEAT_S = 5.0
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

    async def prepare(self, origin: Origin, data: ResponsesRequest) -> Prepared:
        """Raises: GatewayError for everything that is wrong with the request itself."""
        stored = self._store_by_default if data.store is None else data.store
        if data.background and data.store is False:
            raise InvalidRequest("background=true needs store=true.", param="background", code="invalid_value")
        if data.background and data.stream:
            raise InvalidRequest(
                "A response in the background cannot be streamed; poll it instead.",
                param="stream",
                code="invalid_value",
            )
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

    async def _add(self, prepared: Prepared, response: Response) -> None:
        principal, end_user = prepared.call.principal, prepared.call.attribution.end_user
        await self.store.add(principal, msgspec.to_builtins(response), prepared.items, end_user=end_user)

    # -- in the background

    async def start(self, prepared: Prepared) -> Response:
        """Keeps the response as queued and works on it in a task. Raises: ModelNotFound."""
        exchange = self._pipeline.begin(prepared.call)
        prepared.response.status = "queued"
        await self._add(prepared, prepared.response)
        queued = msgspec.structs.replace(prepared.response)
        presenter = ResponsePresenter(prepared.response, exchange)
        task = self._pipeline.background.spawn(self._run(presenter), name=f"response-{prepared.response.id}")
        self._running[prepared.response.id] = task
        return queued

    async def _run(self, presenter: ResponsePresenter) -> None:
        response = presenter.response
        try:
            response.status = "in_progress"
            if not await self.store.advance(msgspec.to_builtins(response)):
                return  # cancelled or deleted before it began
            try:
                await presenter.whole()
            except GatewayError as exc:
                failed(response, exc.code or "server_error", exc.message)
            await self.store.advance(msgspec.to_builtins(response))
        finally:
            self._running.pop(response.id, None)

    async def cancel(self, principal: Principal, response_id: str) -> StoredResponse:
        """Ends an open response in the background, on whatever gateway it runs. Raises: NotFound, InvalidRequest."""
        row = await self.store.get(principal, response_id)
        if not row.background:
            raise InvalidRequest("Cannot cancel a synchronous response.", code="invalid_value")
        if row.status in OPEN:
            await self.store.advance({**row.response, "status": "cancelled"})
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

"""/v1/responses: create, get, delete, cancel, input_items, input_tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

from litestar import Controller, Request, delete, get, post
from litestar import Response as HttpResponse
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from litestar.response.base import ASGIResponse

from gateway.auth import principal_of, requires_key
from gateway.controllers.common import streamed_answer
from gateway.controllers.responses_spec import answers
from gateway.decoding import BodyDTO
from gateway.errors import GatewayError, InvalidRequest, clip
from gateway.responses.service import ResponseService
from gateway.schemas.responses import (
    DeletedResponse,
    InputTokens,
    Item,
    ItemList,
    Response,
    ResponsesRequest,
)
from gateway.streaming import EventStream, json_response, named_frame, until_disconnect

MAX_PAGE = 100
KEPT = answers(Response, "The response as it is kept.")


class ResponsesController(Controller):
    """Answers that may be kept and built upon."""

    path = "/v1/responses"
    tags = ("Responses",)
    guards = (requires_key,)

    @post(
        operation_id="CreateResponse",
        summary="Create a response",
        dto=BodyDTO[ResponsesRequest],
        return_dto=None,
        status_code=200,
        responses=answers(Response, "The response; with stream, its events."),
    )
    async def create_response(
        self,
        request: Request[Any, Any, Any],
        data: JSONBody[ResponsesRequest],
        responses: NamedDependency[ResponseService],
    ) -> ASGIResponse:
        """Raises: InvalidRequest (400), ModelNotFound (404), RateLimited and QuotaExceeded (429), Unavailable (503)."""
        prepared = await responses.prepare(request, data)
        if data.background and data.stream:
            return await _event_stream(request, await responses.start_streamed(prepared))
        if data.background:
            return json_response(await responses.start(prepared))
        presenter = responses.presenter(prepared)
        exchange = presenter.exchange
        if data.stream:
            return await streamed_answer(request, exchange, presenter.frames(), on_error=presenter.error_frames)
        response = await until_disconnect(request, presenter.whole())
        return json_response(response, headers=exchange.headers)

    @post(
        "/input_tokens",
        operation_id="CountResponseTokens",
        summary="Count the tokens of an input",
        dto=BodyDTO[ResponsesRequest],
        return_dto=None,
        status_code=200,
        responses=answers(InputTokens, "How many tokens the prompt has."),
    )
    async def count_tokens(
        self,
        request: Request[Any, Any, Any],
        data: JSONBody[ResponsesRequest],
        responses: NamedDependency[ResponseService],
    ) -> ASGIResponse:
        """Raises: InvalidRequest (400), ModelNotFound (404)."""
        prepared = await responses.prepare(request, data)
        return json_response(InputTokens(input_tokens=prepared.call.num_prompt_tokens))

    @get("/{response_id:str}", operation_id="GetResponse", summary="Get a response", responses=KEPT)
    async def get_response(
        self,
        request: Request[Any, Any, Any],
        response_id: FromPath[str],
        responses: NamedDependency[ResponseService],
        stream: FromQuery[bool | None] = None,
        starting_after: Annotated[int | None, QueryParameter(ge=-1, le=1_000_000_000)] = None,
    ) -> ASGIResponse:
        """Raises: NotFound (404), InvalidRequest (400)."""
        if stream:
            start = 0 if starting_after is None else starting_after + 1
            events = await responses.events(principal_of(request), response_id, start)
            return await _event_stream(request, events)
        row = await responses.store.get(principal_of(request), response_id)
        return json_response(row.response)

    @delete("/{response_id:str}", operation_id="DeleteResponse", summary="Delete a response", status_code=200)
    async def delete_response(
        self, request: Request[Any, Any, Any], response_id: FromPath[str], responses: NamedDependency[ResponseService]
    ) -> HttpResponse[DeletedResponse]:
        """Raises: NotFound (404)."""
        await responses.delete(principal_of(request), response_id)
        return HttpResponse(DeletedResponse(id=response_id))

    @post(
        "/{response_id:str}/cancel",
        operation_id="CancelResponse",
        summary="Cancel a response in the background",
        status_code=200,
        responses=KEPT,
    )
    async def cancel_response(
        self, request: Request[Any, Any, Any], response_id: FromPath[str], responses: NamedDependency[ResponseService]
    ) -> HttpResponse[Any]:
        """Raises: NotFound (404), InvalidRequest (400)."""
        row = await responses.cancel(principal_of(request), response_id)
        return HttpResponse(row.response)

    @get("/{response_id:str}/input_items", operation_id="ListInputItems", summary="List a response's input items")
    async def list_input_items(  # noqa: PLR0917 - a handler's arguments are passed by name
        self,
        request: Request[Any, Any, Any],
        response_id: FromPath[str],
        responses: NamedDependency[ResponseService],
        limit: Annotated[int, QueryParameter(ge=1, le=MAX_PAGE)] = 20,
        order: FromQuery[Literal["asc", "desc"]] = "desc",
        after: FromQuery[str | None] = None,
    ) -> HttpResponse[ItemList]:
        """Raises: NotFound (404)."""
        row = await responses.store.get(principal_of(request), response_id)
        items = row.input_items if order == "asc" else row.input_items[::-1]
        return HttpResponse(_page(items, limit, after))


async def _event_stream(request: Request[Any, Any, Any], frames: AsyncGenerator[bytes, None]) -> ASGIResponse:
    """Frames as they come; nothing at all where the last is behind `starting_after`."""
    try:
        first = await until_disconnect(request, _next(frames))
    except BaseException:
        await frames.aclose()
        raise
    return EventStream(first, frames, on_error=_error_frame)


def _error_frame(error: GatewayError) -> bytes:
    return named_frame("error", {"type": "error", **error.envelope()})


async def _next(frames: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(frames, b"")


def _page(items: list[Item], limit: int, after: str | None) -> ItemList:
    start = 0
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise InvalidRequest(f"No item with id '{clip(after, 64)}'.", param="after", code="invalid_value")
        start = ids.index(after) + 1
    data = items[start : start + limit]
    return ItemList(
        data=data,
        first_id=data[0]["id"] if data else None,
        last_id=data[-1]["id"] if data else None,
        has_more=start + limit < len(items),
    )

"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from litestar import Controller, Request
from litestar.params import JSONBody
from litestar.response.base import ASGIResponse

from gateway.auth import requires_key
from gateway.calls import Endpoint
from gateway.controllers.common import plain_answer, streamed_answer
from gateway.controllers.responses_spec import CHAT_RESPONSES
from gateway.decoding import BodyDTO
from gateway.hot_route import HotPost, parts_of
from gateway.intake import Intake
from gateway.presenters.chat import ChatPresenter
from gateway.schemas.chat import ChatRequest


class ChatController(Controller):
    """Chats with a model."""

    path = "/v1/chat"
    tags = ("Chat",)
    guards = (requires_key,)

    @HotPost(
        "/completions",
        operation_id="CreateChatCompletion",
        summary="Answer a chat",
        dto=BodyDTO[ChatRequest],
        return_dto=None,
        status_code=200,
        responses=CHAT_RESPONSES,
    )
    async def create_completion(
        self,
        request: Request[Any, Any, Any],
        data: JSONBody[ChatRequest],
    ) -> ASGIResponse:
        """Raises: InvalidRequest (400), ModelNotFound (404), RateLimited and QuotaExceeded (429), Unavailable (503)."""
        parts = parts_of(request)
        intake = Intake(request, Endpoint.CHAT, data, timeout_s=parts.settings.request_timeout_s)
        exchange = parts.pipeline.begin(await parts.chat_calls.build(intake, data))
        presenter = ChatPresenter(data, exchange)
        if data.stream:
            return await streamed_answer(request, exchange, presenter.frames())
        return await plain_answer(request, exchange, presenter.whole)

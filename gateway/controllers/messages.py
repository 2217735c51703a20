"""/v1/messages and /v1/messages/count_tokens, Anthropic's API."""

from __future__ import annotations

from typing import Any, cast

from litestar import Controller, Request, post
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException
from litestar.params import JSONBody
from litestar.response.base import ASGIResponse

from gateway.anthropic.errors import anthropic_error_response
from gateway.anthropic.translate import chat_request, own_names
from gateway.auth import requires_key
from gateway.calls import Call, Endpoint
from gateway.chat_calls import ChatCalls
from gateway.controllers.common import streamed_answer
from gateway.controllers.responses_spec import answers
from gateway.decoding import BodyDTO
from gateway.errors import GatewayError
from gateway.intake import Intake
from gateway.pipeline import Pipeline
from gateway.presenters.messages import MessagePresenter
from gateway.schemas.messages import (
    AnthropicErrorEnvelope,
    AnthropicMessage,
    CountTokensRequest,
    MessagesRequest,
    MessageTokensCount,
)
from gateway.settings import Settings
from gateway.streaming import json_response, until_disconnect


class MessagesController(Controller):
    """Chats in Anthropic's shape, through the same limits, holds and ledger."""

    path = "/v1/messages"
    tags = ("Messages",)
    guards = (requires_key,)
    exception_handlers = cast(Any, dict.fromkeys((GatewayError, HTTPException, Exception), anthropic_error_response))

    @post(
        operation_id="CreateMessage",
        summary="Create a message",
        dto=BodyDTO[MessagesRequest],
        return_dto=None,
        status_code=200,
        responses=answers(AnthropicMessage, "The message; with stream, its events.", error=AnthropicErrorEnvelope),
    )
    async def create_message(
        self,
        request: Request[Any, Any, Any],
        data: JSONBody[MessagesRequest],
        pipeline: NamedDependency[Pipeline],
        chat_calls: NamedDependency[ChatCalls],
        settings: NamedDependency[Settings],
    ) -> ASGIResponse:
        """Raises: InvalidRequest (400), ModelNotFound (404), RateLimited and QuotaExceeded (429), Unavailable (503)."""
        call = await _call(request, data, chat_calls, settings)
        exchange = pipeline.begin(call)
        presenter = MessagePresenter(exchange)
        if data.stream:
            return await streamed_answer(request, exchange, presenter.frames(), on_error=presenter.error_frames)
        message = await until_disconnect(request, presenter.whole())
        return json_response(message, headers=exchange.headers)

    @post(
        "/count_tokens",
        operation_id="CountMessageTokens",
        summary="Count the tokens of a message's prompt",
        dto=BodyDTO[CountTokensRequest],
        return_dto=None,
        status_code=200,
        responses=answers(MessageTokensCount, "How many tokens the prompt has.", error=AnthropicErrorEnvelope),
    )
    async def count_tokens(
        self,
        request: Request[Any, Any, Any],
        data: JSONBody[CountTokensRequest],
        chat_calls: NamedDependency[ChatCalls],
        settings: NamedDependency[Settings],
    ) -> ASGIResponse:
        """Raises: InvalidRequest (400), ModelNotFound (404)."""
        call = await _call(request, data, chat_calls, settings)
        return json_response(MessageTokensCount(input_tokens=call.num_prompt_tokens))


async def _call(
    request: Request[Any, Any, Any], data: CountTokensRequest, chat_calls: ChatCalls, settings: Settings
) -> Call:
    with own_names():
        chat = chat_request(data)
        intake = Intake(request, Endpoint.MESSAGES, chat, timeout_s=settings.request_timeout_s)
        return await chat_calls.build(intake, chat)

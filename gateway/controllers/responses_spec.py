"""What endpoints answer, for the OpenAPI document: handlers return raw ASGI responses, which say nothing of it."""

from __future__ import annotations

from typing import Any

from litestar.openapi.datastructures import ResponseSpec

from gateway.schemas.chat import ChatCompletion
from gateway.schemas.completions import Completion
from gateway.schemas.embeddings import EmbeddingList
from gateway.schemas.errors import ErrorEnvelope

_ERRORS: dict[int, ResponseSpec] = {
    400: ResponseSpec(ErrorEnvelope, description="The request can never be served as sent."),
    401: ResponseSpec(ErrorEnvelope, description="No valid API key."),
    403: ResponseSpec(ErrorEnvelope, description="The key may not do this."),
    404: ResponseSpec(ErrorEnvelope, description="Unknown model or object."),
    408: ResponseSpec(ErrorEnvelope, description="The server's time limit was reached."),
    413: ResponseSpec(ErrorEnvelope, description="The body, or the request, is too large."),
    415: ResponseSpec(ErrorEnvelope, description="The body is not application/json."),
    429: ResponseSpec(ErrorEnvelope, description="A limit or budget is used up; see retry-after and x-should-retry."),
    500: ResponseSpec(ErrorEnvelope, description="A fault of the server."),
    503: ResponseSpec(ErrorEnvelope, description="Not available now; see retry-after."),
}


def answers(type_: Any, description: str) -> dict[int, ResponseSpec]:
    """The 200 of `type_` and every error."""
    return {200: ResponseSpec(type_, description=description, generate_examples=False), **_ERRORS}


CHAT_RESPONSES = answers(ChatCompletion, "The answer; with stream, chat.completion.chunk frames.")
COMPLETION_RESPONSES = answers(Completion, "The answer; with stream, text_completion frames.")
EMBEDDING_RESPONSES = answers(EmbeddingList, "One embedding an input.")

"""What endpoints answer, for the OpenAPI document: handlers return raw ASGI responses, which say nothing of it."""

from __future__ import annotations

from typing import Any

from litestar.openapi.datastructures import ResponseSpec

from gateway.schemas.chat import ChatCompletion
from gateway.schemas.completions import Completion
from gateway.schemas.embeddings import EmbeddingList
from gateway.schemas.errors import ErrorEnvelope

_ERRORS = {
    400: "The request can never be served as sent.",
    401: "No valid API key.",
    403: "The key may not do this.",
    404: "Unknown model or object.",
    408: "The server's time limit was reached.",
    413: "The body, or the request, is too large.",
    415: "The body is not application/json.",
    429: "A limit or budget is used up; see retry-after and x-should-retry.",
    500: "A fault of the server.",
    503: "Not available now; see retry-after.",
}


def answers(type_: Any, description: str, *, error: Any = ErrorEnvelope) -> dict[int, ResponseSpec]:
    """The 200 of `type_` and every error in the envelope `error`."""
    errors = {status: ResponseSpec(error, description=words) for status, words in _ERRORS.items()}
    return {200: ResponseSpec(type_, description=description, generate_examples=False), **errors}


CHAT_RESPONSES = answers(ChatCompletion, "The answer; with stream, chat.completion.chunk frames.")
COMPLETION_RESPONSES = answers(Completion, "The answer; with stream, text_completion frames.")
EMBEDDING_RESPONSES = answers(EmbeddingList, "One embedding an input.")

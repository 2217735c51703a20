"""What endpoints answer, for the OpenAPI document: handlers return raw ASGI responses, which say nothing of it."""

from __future__ import annotations

from typing import Any

from litestar.openapi.datastructures import ResponseSpec

from gateway.schemas.chat import ChatCompletion
from gateway.schemas.completions import Completion
from gateway.schemas.embeddings import EmbeddingList
from gateway.schemas.errors import ErrorEnvelope


def answers(type_: Any, description: str, *, error: Any = ErrorEnvelope) -> dict[int, ResponseSpec]:
    """The 200 of `type_`; errors come in the envelope `error` (gateway/openapi.py tells their statuses)."""
    refusal = ResponseSpec(error, description="The request can never be served as sent.")
    return {200: ResponseSpec(type_, description=description, generate_examples=False), 400: refusal}


CHAT_RESPONSES = answers(ChatCompletion, "The answer; with stream, chat.completion.chunk frames.")
COMPLETION_RESPONSES = answers(Completion, "The answer; with stream, text_completion frames.")
EMBEDDING_RESPONSES = answers(EmbeddingList, "One embedding an input.")

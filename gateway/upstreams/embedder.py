"""The embedder as a target of routes: it has a name, a price and a revision, but generates no text."""

from __future__ import annotations

from collections.abc import AsyncIterator

from cache.embedder import Embedder
from gateway.calls import Call, Endpoint
from gateway.errors import InvalidRequest
from gateway.upstreams.base import Progress


class EmbedderUpstream:
    """`/v1/embeddings` only."""

    def __init__(self, embedder: Embedder, model: str) -> None:
        self.embedder = embedder
        self._model = model

    @property
    def name(self) -> str:
        return "local"

    @property
    def model(self) -> str:
        return self._model

    @property
    def revision(self) -> str:
        return self.embedder.fingerprint

    async def generate(self, call: Call, attempt: int) -> AsyncIterator[Progress]:  # noqa: ARG002
        """Raises: InvalidRequest: another endpoint was asked for it."""
        raise wrong_endpoint(self._model, call.endpoint)
        yield  # makes this a generator

    async def close(self) -> None:
        """The embedder belongs to the application."""


def wrong_endpoint(model: str, endpoint: Endpoint) -> InvalidRequest:
    """The error when a model cannot serve an endpoint."""
    return InvalidRequest(
        f"The model `{model}` cannot be used with {endpoint}.", param="model", code="model_not_supported"
    )

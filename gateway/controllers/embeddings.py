"""POST /v1/embeddings."""

from __future__ import annotations

from typing import Any

from litestar import Controller, Request, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from litestar.response.base import ASGIResponse

from gateway.auth import requires_key
from gateway.calls import Endpoint
from gateway.controllers.responses_spec import EMBEDDING_RESPONSES
from gateway.decoding import BodyDTO
from gateway.embedding_calls import EmbeddingCalls
from gateway.intake import Intake
from gateway.routing import Router
from gateway.schemas.embeddings import EmbeddingRequest
from gateway.settings import Settings
from gateway.streaming import json_response, until_disconnect
from gateway.upstreams.embedder import EmbedderUpstream, wrong_endpoint


class EmbeddingController(Controller):
    """Turns texts into vectors."""

    path = "/v1/embeddings"
    tags = ("Embeddings",)
    guards = (requires_key,)

    @post(
        operation_id="CreateEmbedding",
        summary="Embed one or several texts",
        dto=BodyDTO[EmbeddingRequest],
        return_dto=None,
        status_code=200,
        responses=EMBEDDING_RESPONSES,
    )
    async def create_embedding(
        self,
        request: Request[Any, Any, Any],
        data: JSONBody[EmbeddingRequest],
        router: NamedDependency[Router],
        embedding_calls: NamedDependency[EmbeddingCalls | None],
        settings: NamedDependency[Settings],
    ) -> ASGIResponse:
        """Raises: InvalidRequest (400), ModelNotFound (404), RateLimited and QuotaExceeded (429), Unavailable (503)."""
        intake = Intake(request, Endpoint.EMBEDDINGS, data, timeout_s=settings.request_timeout_s)
        route = router.resolve(data.model, intake.principal)
        if embedding_calls is None or not isinstance(route.targets[0].upstream, EmbedderUpstream):
            raise wrong_endpoint(data.model, Endpoint.EMBEDDINGS)
        answer, headers = await until_disconnect(request, embedding_calls.answer(intake, data, route))
        return json_response(answer, headers=headers)

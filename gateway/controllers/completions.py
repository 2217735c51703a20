"""POST /v1/completions."""

from __future__ import annotations

from typing import Any

from litestar import Controller, Request
from litestar.params import JSONBody
from litestar.response.base import ASGIResponse

from gateway.auth import requires_key
from gateway.calls import Endpoint
from gateway.controllers.common import plain_answer, streamed_answer
from gateway.controllers.responses_spec import COMPLETION_RESPONSES
from gateway.decoding import BodyDTO
from gateway.hot_route import HotPost, parts_of
from gateway.intake import Intake
from gateway.presenters.completions import CompletionPresenter
from gateway.schemas.completions import CompletionRequest


class CompletionController(Controller):
    """Continues texts."""

    path = "/v1/completions"
    tags = ("Completions",)
    guards = (requires_key,)

    @HotPost(
        operation_id="CreateCompletion",
        summary="Continue one or several texts",
        dto=BodyDTO[CompletionRequest],
        return_dto=None,
        status_code=200,
        responses=COMPLETION_RESPONSES,
    )
    async def create_completion(
        self,
        request: Request[Any, Any, Any],
        data: JSONBody[CompletionRequest],
    ) -> ASGIResponse:
        """Raises: InvalidRequest (400), ModelNotFound (404), RateLimited and QuotaExceeded (429), Unavailable (503)."""
        parts = parts_of(request)
        intake = Intake(request, Endpoint.COMPLETIONS, data, timeout_s=parts.settings.request_timeout_s)
        built = await parts.completion_calls.build(intake, data)
        exchange = parts.pipeline.begin(built.call)
        presenter = CompletionPresenter(data, exchange, built)
        if data.stream:
            return await streamed_answer(request, exchange, presenter.frames())
        return await plain_answer(request, exchange, presenter.whole)

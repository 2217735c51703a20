"""GET /v1/models and /v1/models/{id}; ids may hold slashes, as they are or as %2F."""

from __future__ import annotations

from typing import Any

from litestar import Controller, Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from gateway.auth import principal_of, requires_key
from gateway.errors import ModelNotFound
from gateway.routing import Route, Router
from gateway.schemas.models import ModelCard, ModelList
from gateway.texts import Texts


class ModelController(Controller):
    """The models and aliases that the calling key may use."""

    path = "/v1/models"
    tags = ("Models",)
    guards = (requires_key,)

    @get(operation_id="ListModels", summary="List models")
    async def list_models(
        self, request: Request[Any, Any, Any], router: NamedDependency[Router], texts: NamedDependency[Texts]
    ) -> Response[ModelList]:
        names = router.visible_names(principal_of(request))
        routes = [route for name in names if (route := router.table.get(name)) is not None]
        return Response(ModelList(data=[_card(route, texts, request.app.state.started_at) for route in routes]))

    @get("/{model:path}", operation_id="RetrieveModel", summary="Get one model")
    async def get_model(
        self,
        request: Request[Any, Any, Any],
        model: FromPath[str],
        router: NamedDependency[Router],
        texts: NamedDependency[Texts],
    ) -> Response[ModelCard]:
        """Raises: ModelNotFound (404)."""
        name = model.lstrip("/")
        if not name:
            raise ModelNotFound(name)
        return Response(_card(router.resolve(name, principal_of(request)), texts, request.app.state.started_at))


def _card(route: Route, texts: Texts, created: int) -> ModelCard:
    first = route.targets[0].upstream
    text = texts.named(first.model)
    return ModelCard(
        id=route.name,
        created=created,
        owned_by="weir" if first.name == "local" else first.name,
        root=first.model,
        parent=first.model if route.is_alias else None,
        max_model_len=text.info.max_model_len if text is not None else None,
    )

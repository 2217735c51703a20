"""`create_app(settings)`: the one composition root. Nobody imports it but `gateway.server` and tests."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from litestar import Litestar
from litestar.config.cors import CORSConfig
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException
from litestar.utils import normalize_path

from gateway import openapi
from gateway.controllers.admin import ADMIN_CONTROLLERS
from gateway.controllers.batches import BatchController
from gateway.controllers.chat import ChatController
from gateway.controllers.completions import CompletionController
from gateway.controllers.embeddings import EmbeddingController
from gateway.controllers.files import FileController
from gateway.controllers.health import HealthController, MetricsController
from gateway.controllers.messages import MessagesController
from gateway.controllers.models import ModelController
from gateway.controllers.organization import ORGANIZATION_CONTROLLERS
from gateway.controllers.responses import ResponsesController
from gateway.controllers.tokenize import TokenizeController
from gateway.controllers.usage import UsageController
from gateway.draining import InFlight
from gateway.errors import GatewayError, error_response, with_head
from gateway.faults import KNOWN, known_error_response
from gateway.metrics import Metrics
from gateway.middleware import EXPOSED_HEADERS, RequestContext
from gateway.parts import Overrides, Parts, running
from gateway.planes import Planes
from gateway.settings import Settings

DATA_PLANE = (
    BatchController, ChatController, CompletionController, EmbeddingController, FileController, MessagesController,
    ModelController, ResponsesController, TokenizeController,
)  # fmt: skip


def create_app(settings: Settings, overrides: Overrides | None = None) -> Litestar:
    """The ASGI application; its lifespan starts and drains everything.

    Args: overrides are for tests. Raises: nothing; what cannot start fails the lifespan.
    """
    app = routed(settings)
    equip(app, settings, overrides or Overrides())
    return app


def routed(settings: Settings) -> Litestar:
    """Every route and its handlers, with nothing of one gateway yet: reading 193 signatures takes 0.16 s of CPU, most
    of what a gateway's start does. Of `settings` it takes the body limit and CORS."""
    return Litestar(
        route_handlers=[
            HealthController,
            MetricsController,
            *DATA_PLANE,
            UsageController,
            *ADMIN_CONTROLLERS,
            *ORGANIZATION_CONTROLLERS,
        ],
        lifespan=[_lifespan],
        dependencies=_dependencies(),
        exception_handlers=_exception_handlers(),
        request_max_body_size=settings.max_body_bytes,
        cors_config=_cors(settings),
        openapi_config=openapi.config(),
        logging_config=None,
    )


def equip(app: Litestar, settings: Settings, overrides: Overrides) -> None:
    """Makes a routed application one gateway: its state, and the context around each request."""
    metrics, in_flight = Metrics(), InFlight()
    app.state = State(
        {
            "settings": settings,
            "overrides": overrides,
            "metrics": metrics,
            "in_flight": in_flight,
            "strict_fields": settings.strict_fields,
        }
    )
    app.asgi_handler = RequestContext(
        app.asgi_handler, metrics, Planes(settings), allowed=_methods_of(app), in_flight=in_flight
    )


@asynccontextmanager
async def _lifespan(app: Litestar) -> AsyncIterator[None]:
    state = app.state
    async with running(state.settings, state.overrides, state.metrics) as parts:
        state.parts = parts
        state.authenticator = parts.billing.auth
        state.started_at = int(time.time())
        yield


def _methods_of(app: Litestar) -> Callable[[str], str]:
    """What an Allow header says for a path; empty for an unknown one."""

    def methods(path: str) -> str:
        try:
            app.asgi_router.handle_routing(path=normalize_path(path), method=cast(Any, "none of them"))
        except MethodNotAllowedException as exc:
            return with_head((exc.headers or {})["allow"])
        except NotFoundException:
            pass
        return ""

    return methods


def _exception_handlers() -> Any:
    """No other shape of error than OpenAI's envelope ever leaves the server."""
    ours = dict.fromkeys((GatewayError, HTTPException, Exception), error_response)
    return ours | dict.fromkeys(KNOWN, known_error_response)


def _dependencies() -> dict[str, Provide]:
    """Handlers name what they need of `Parts` by its field."""

    def of_parts(name: str) -> Callable[[State], Any]:
        def provide(state: State) -> Any:
            parts: Parts = state.parts
            return getattr(parts, name)

        return provide

    names = (
        "pipeline", "chat_calls", "completion_calls", "embedding_calls", "responses", "files", "batches",
        "batch_worker", "router", "texts", "probe", "billing", "route_config", "invalidator",
    )  # fmt: skip
    provided = {name: Provide(of_parts(name), sync_to_thread=False) for name in names}
    provided["settings"] = Provide(_settings, sync_to_thread=False)
    provided["metrics"] = Provide(_metrics, sync_to_thread=False)
    return provided


def _settings(state: State) -> Settings:
    found: Settings = state.settings
    return found


def _metrics(state: State) -> Metrics:
    found: Metrics = state.metrics
    return found


def _cors(settings: Settings) -> CORSConfig | None:
    """Off unless origins are named. SDKs send x-stainless-*, so every asked header is allowed."""
    if not settings.cors_allow_origins:
        return None
    return CORSConfig(
        allow_origins=list(settings.cors_allow_origins),
        allow_methods=["GET", "POST", "DELETE", "PATCH", "PUT", "HEAD", "OPTIONS"],
        allow_headers=["*"],
        expose_headers=list(EXPOSED_HEADERS),
        max_age=600,
    )

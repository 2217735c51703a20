"""One line of a batch: the same body, checks, road and ledger as a request of its own, at batch priority and price."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from billing.principal import Principal
from gateway.calls import Endpoint
from gateway.chat_calls import ChatCalls
from gateway.completion_calls import CompletionCalls
from gateway.decoding import decode
from gateway.embedding_calls import EmbeddingCalls
from gateway.errors import GatewayError, InvalidRequest, RateLimited, Unavailable, from_exception
from gateway.intake import Intake
from gateway.pipeline import Pipeline
from gateway.presenters.chat import ChatPresenter
from gateway.presenters.completions import CompletionPresenter
from gateway.responses.service import ResponseService
from gateway.schemas.batches import LineResponse
from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.embeddings import EmbeddingRequest
from gateway.schemas.responses import ResponsesRequest
from gateway.upstreams.embedder import EmbedderUpstream, wrong_endpoint

log = logging.getLogger(__name__)


class LineOrigin:
    """Where a line comes from, as `Intake` reads a request: whose it is, and its id."""

    def __init__(self, principal: Principal, request_id: str) -> None:
        self.scope: dict[str, Any] = {"state": {"principal": principal, "request_id": request_id, "batch": True}}
        self.headers: Mapping[str, str] = {}


class TryLater(Exception):
    """The line was refused for a reason that passes: a rate, a full queue. `wait_s` is how long to wait."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"try again in {wait_s:.1f} s")
        self.wait_s = wait_s


class LineRunner:
    """Answers lines. `timeout_s` bounds one of them, seconds."""

    def __init__(
        self,
        chat_calls: ChatCalls,
        completion_calls: CompletionCalls,
        embedding_calls: EmbeddingCalls | None,
        responses: ResponseService,
        pipeline: Pipeline,
        *,
        timeout_s: float,
    ) -> None:
        self._chat_calls = chat_calls
        self._completion_calls = completion_calls
        self._embedding_calls = embedding_calls
        self._responses = responses
        self._pipeline = pipeline
        self._timeout_s = timeout_s
        self._by_path: dict[str, Callable[[LineOrigin, bytes], Awaitable[Any]]] = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._completion,
            "/v1/embeddings": self._embedding,
            "/v1/responses": self._response,
        }

    async def run(self, endpoint: str, principal: Principal, request_id: str, body: str) -> LineResponse:
        """The answer, or the error the caller of a single request would get. Raises: TryLater."""
        origin = LineOrigin(principal, request_id)
        try:
            answer = await self._by_path[endpoint](origin, body.encode())
        except Exception as exc:  # the line's supervisor: a fault of one line is that line's answer
            if isinstance(exc, RateLimited | Unavailable) and exc.code != "unknown_price":
                raise TryLater(exc.retry_after_s or 1.0) from exc
            error = from_exception(exc)
            if not isinstance(exc, GatewayError):
                log.exception("line %s failed", request_id)
            return LineResponse(status_code=error.status_code, request_id=request_id, body=error.envelope())
        return LineResponse(status_code=200, request_id=request_id, body=answer)

    def _intake(self, origin: LineOrigin, endpoint: Endpoint, data: Any) -> Intake:
        if getattr(data, "stream", False):
            raise InvalidRequest("A line of a batch cannot be streamed.", param="stream", code="invalid_value")
        return Intake(origin, endpoint, data, timeout_s=self._timeout_s)

    async def _chat(self, origin: LineOrigin, body: bytes) -> Any:
        data = decode(body, ChatRequest, supported=ChatRequest.supported_values)
        data.seed = _seed(data.seed, data.temperature, origin)
        exchange = self._pipeline.begin(await self._chat_calls.build(self._intake(origin, Endpoint.CHAT, data), data))
        return ChatPresenter(data, exchange).whole(await exchange.collect())

    async def _completion(self, origin: LineOrigin, body: bytes) -> Any:
        data = decode(body, CompletionRequest)
        data.seed = _seed(data.seed, data.temperature, origin)
        built = await self._completion_calls.build(self._intake(origin, Endpoint.COMPLETIONS, data), data)
        exchange = self._pipeline.begin(built.call)
        return CompletionPresenter(data, exchange, built).whole(await exchange.collect())

    async def _embedding(self, origin: LineOrigin, body: bytes) -> Any:
        data = decode(body, EmbeddingRequest)
        intake = self._intake(origin, Endpoint.EMBEDDINGS, data)
        route = self._pipeline.router.resolve(data.model, intake.principal)
        if self._embedding_calls is None or not isinstance(route.targets[0].upstream, EmbedderUpstream):
            raise wrong_endpoint(data.model, Endpoint.EMBEDDINGS)
        answer, _ = await self._embedding_calls.answer(intake, data, route)
        return answer

    async def _response(self, origin: LineOrigin, body: bytes) -> Any:
        data = decode(body, ResponsesRequest, supported=ResponsesRequest.supported_values)
        if data.stream or data.background:
            raise InvalidRequest("A line of a batch is neither streamed nor in the background.", param="stream")
        data.seed = _seed(data.seed, data.temperature, origin)
        prepared = await self._responses.prepare(origin, data)
        return await self._responses.presenter(prepared).whole()


def _seed(seed: int | None, temperature: float | None, origin: LineOrigin) -> int | None:
    """A line asked again by the gateway that took over draws the same tokens, so that its row in the ledger is the
    same row. Greedy lines need no seed, and none that would keep them from the cache."""
    if seed is not None or temperature == 0:
        return seed
    digest = hashlib.sha256(origin.scope["state"]["request_id"].encode()).digest()
    return int.from_bytes(digest[:7])


def encode(value: Any) -> bytes:
    """JSON of a line; msgspec writes no line ends, so that a line stays one."""
    return msgspec.json.encode(value)

"""POST /v1/embeddings through the same admission, holds and ledger as every other inference route."""

from __future__ import annotations

import asyncio
import base64
import time

import numpy as np

from billing.tables import EntryStatus
from cache.embedder import Embedder, Embedding
from cache.errors import EmbedderUnavailable
from engine.types import SamplingParams
from gateway.background import Background
from gateway.booking import Ending
from gateway.calls import Call, Counts
from gateway.errors import InvalidRequest, RequestTimeout, Unavailable
from gateway.faults import KNOWN, as_gateway_error
from gateway.governor import Governor, Hold
from gateway.intake import Intake
from gateway.metrics import Metrics
from gateway.routing import Route
from gateway.schemas.embeddings import EmbeddingItem, EmbeddingList, EmbeddingRequest, EmbeddingUsage

MAX_TEXT_BYTES = 1 << 20
SPECIAL_TOKENS = 2  # a BERT input's [CLS] and [SEP]


class EmbeddingCalls:
    """Embeds inputs under limits and books them. `model` is the embedder's served name."""

    def __init__(self, embedder: Embedder, governor: Governor, background: Background, metrics: Metrics) -> None:
        self._embedder = embedder
        self._governor = governor
        self._background = background
        self._metrics = metrics

    async def answer(
        self, intake: Intake, data: EmbeddingRequest, route: Route
    ) -> tuple[EmbeddingList, dict[str, str]]:
        """The answer and its headers. Raises: GatewayError."""
        if not self._embedder.dims:
            raise Unavailable("The embedding model has not started yet.", retry_after_s=5)
        texts = _texts(data)
        dims = self._dims(data)
        call = intake.call(prompts=[], sampling=SamplingParams(max_tokens=0))
        # The embedder counts tokens as it works; before that a text has at most one token a byte.
        call.estimated_prompt_tokens = sum(len(text.encode()) + SPECIAL_TOKENS for text in texts)
        try:
            embeddings, headers = await self._embedded(call, route, texts)
        except KNOWN as exc:
            raise as_gateway_error(exc) from exc
        num_tokens = sum(embedding.num_tokens for embedding in embeddings)
        items = [
            EmbeddingItem(index=number, embedding=_encoded(embedding, dims, data.encoding_format))
            for number, embedding in enumerate(embeddings)
        ]
        usage = EmbeddingUsage(prompt_tokens=num_tokens, total_tokens=num_tokens)
        return EmbeddingList(data=items, model=data.model, usage=usage), headers

    async def _embedded(self, call: Call, route: Route, texts: list[str]) -> tuple[list[Embedding], dict[str, str]]:
        plan = list(route.targets)
        admitted, _ = await self._governor.admit(call, plan, None)
        async with admitted:
            hold = await self._governor.hold(admitted, call, plan)
            counts, status = Counts(), EntryStatus.FAILED
            try:
                embeddings = await self._embed(texts, call.deadline)
                counts = Counts(prompt_tokens=sum(each.num_tokens for each in embeddings))
                status = EntryStatus.OK
            finally:
                ending = Ending(
                    status=status,
                    counts=counts,
                    target=plan[0],
                    latency_s=time.monotonic() - call.accepted_at,
                )
                await self._background.finish(self._settle(hold, call, route, ending), name="settle")
        return embeddings, admitted.headers

    async def _settle(self, hold: Hold, call: Call, route: Route, ending: Ending) -> None:
        """The row, durable; what was held goes back whether it was booked or not. Raises: LedgerUnavailable."""
        try:
            await self._governor.book(hold, call, route, ending)
        finally:
            self._background.spawn(self._governor.release(hold, None), name="release")
        self._metrics.finished(
            call.endpoint,
            route.name,
            ending.status,
            time.monotonic() - call.accepted_at,
            prompt=ending.counts.prompt_tokens,
            cached=0,
            completion=0,
        )

    async def _embed(self, texts: list[str], deadline: float) -> list[Embedding]:
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await self._embedder.embed(texts)
        except TimeoutError as exc:
            raise RequestTimeout("The request took longer than this server allows.") from exc
        except EmbedderUnavailable as exc:
            raise Unavailable("The embedding model is not available at the moment.", retry_after_s=2) from exc

    def _dims(self, data: EmbeddingRequest) -> int:
        dims = data.dimensions
        if dims is not None and dims > self._embedder.dims:
            raise InvalidRequest(
                f"Invalid 'dimensions': integer above maximum value. Expected a value <= "
                f"{self._embedder.dims}, but got {dims} instead.",
                param="dimensions",
                code="integer_above_max_value",
            )
        return dims or self._embedder.dims


def _texts(data: EmbeddingRequest) -> list[str]:
    """Raises: InvalidRequest for token ids (another tokenizer's ids mean nothing here), empty and over-long texts."""
    given = [data.input] if isinstance(data.input, str) else data.input
    texts: list[str] = []
    for number, item in enumerate(given):
        param = "input" if isinstance(data.input, str) else f"input[{number}]"
        if not isinstance(item, str):
            raise InvalidRequest(
                f"Invalid type for '{param}': the model `{data.model}` takes texts, not token ids.",
                param="input",
                code="invalid_type",
            )
        if not item:
            raise InvalidRequest(
                f"Invalid '{param}': empty string. Expected a string with minimum length 1, but got an empty string "
                "instead.",
                param=param,
                code="empty_string",
            )
        if len(item.encode()) > MAX_TEXT_BYTES:
            raise InvalidRequest(
                f"Invalid '{param}': string too long. Expected at most {MAX_TEXT_BYTES} bytes.",
                param=param,
                code="string_above_max_length",
            )
        texts.append(item)
    return texts


def _encoded(embedding: Embedding, dims: int, encoding: str | None) -> list[float] | str:
    """Little-endian float32 in base64, or a list. Fewer dimensions are cut off and brought to length 1 again."""
    vector = embedding.vector
    if dims < len(vector):
        vector = vector[:dims]
        length = float(np.linalg.norm(vector))
        vector = vector / length if length else vector
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    return [float(value) for value in vector]

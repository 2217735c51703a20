"""Our own engine as an upstream: every prompt of a call is one engine request, their streams are merged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import msgspec

from engine.client import EngineClient
from engine.types import Delta, EngineRequest, FinishReason, SamplingParams
from gateway.calls import Call, Counts, OutputParser, Piece
from gateway.upstreams.base import Progress, UpstreamError
from gateway.upstreams.best_of import candidates, chosen

CacheSalt = Callable[[str, str], bytes]

_FINISH_WORDS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.ABORT: "abort"}


class LocalUpstream:
    """`name` is `local`; `model` one of the names under which the engine's model is served."""

    def __init__(
        self, engine: EngineClient, cache_salt: CacheSalt, *, name: str = "local", model: str | None = None
    ) -> None:
        """Args: cache_salt gives a tenant's and project's salt of the prefix cache: nothing of theirs is shared.
        model None is the engine's own name."""
        self._engine = engine
        self._cache_salt = cache_salt
        self._name = name
        self._model = model

    @property
    def name(self) -> str:
        return self._name

    @property
    def model(self) -> str:
        return self._model or self._engine.model.name

    @property
    def revision(self) -> str:
        return self._engine.model.revision

    @property
    def engine(self) -> EngineClient:
        return self._engine

    def generate(self, call: Call, attempt: int) -> AsyncIterator[Progress]:
        """Choice indices run over prompts first: prompt p's k-th choice is p * n + k, as OpenAI numbers them."""
        sampling = call.sampling
        if sampling.max_tokens == 0:
            return self._prompt_only(call, attempt)
        if (sampling.best_of or 0) <= sampling.n:
            return self._sequences(call, attempt)
        wide = msgspec.structs.replace(call, sampling=candidates(sampling))
        return chosen(self._sequences(wide, attempt), sampling)

    async def _sequences(self, call: Call, attempt: int) -> AsyncGenerator[Progress, None]:
        merge = _Merge(call)
        requests = [self._request(call, attempt, number) for number in range(len(call.prompts))]
        if len(requests) == 1:
            async with aclosing(_closable(self._engine.generate(requests[0]))) as deltas:
                async for delta in deltas:
                    yield merge.add(0, delta)
            return
        async with aclosing(_interleave([self._engine.generate(request) for request in requests])) as numbered:
            async for number, delta in numbered:
                yield merge.add(number, delta)

    async def _prompt_only(self, call: Call, attempt: int) -> AsyncGenerator[Progress, None]:
        """No output is asked for (echo). The engine always makes a token, so it runs only where the prompt's scores
        are wanted, and its token is left out."""
        sampling = call.sampling
        if sampling.prompt_logprobs is None:
            pieces = [Piece(index=index, finish_reason="length") for index in range(call.num_choices)]
            yield Progress(pieces=pieces, counts=Counts(prompt_tokens=sum(map(len, call.prompts))))
            return
        shortest = SamplingParams(n=sampling.n, temperature=0, max_tokens=1, prompt_logprobs=sampling.prompt_logprobs)
        scored = msgspec.structs.replace(call, sampling=shortest, new_parser=None)
        async with aclosing(self._sequences(scored, attempt)) as steps:
            async for step in steps:
                counts = msgspec.structs.replace(step.counts, completion_tokens=0)
                yield Progress(pieces=[_without_output(piece) for piece in step.pieces], counts=counts)

    async def close(self) -> None:
        """The engine belongs to the application, which closes it."""

    def _request(self, call: Call, attempt: int, number: int) -> EngineRequest:
        return EngineRequest(
            request_id=f"{call.request_id}-{attempt}-{number}",
            prompt_token_ids=call.prompts[number],
            sampling=call.sampling,
            cache_salt=self._cache_salt(call.principal.tenant_id, call.principal.project_id),
            tenant=call.principal.tenant_id,
            priority=call.priority,
        )


def _without_output(piece: Piece) -> Piece:
    finish = None if piece.finish_reason is None else "length"
    return Piece(index=piece.index, prompt_logprobs=piece.prompt_logprobs, finish_reason=finish)


class _Merge:
    """Turns engine deltas into pieces and running counts."""

    def __init__(self, call: Call) -> None:
        self._n = call.sampling.n
        self._parsers: dict[int, OutputParser] = {}
        self._new_parser = call.new_parser
        self._prompt_tokens = [0] * len(call.prompts)
        self._cached_tokens = [0] * len(call.prompts)
        self._completion_tokens: dict[tuple[int, int], int] = {}
        self._reasoning_tokens = 0
        self._engine_us = 0

    def add(self, number: int, delta: Delta) -> Progress:
        self._prompt_tokens[number] = delta.prompt_tokens
        self._cached_tokens[number] = delta.cached_tokens
        self._completion_tokens[number, delta.index] = delta.completion_tokens
        self._engine_us += delta.engine_us
        if delta.finish_reason is FinishReason.ERROR:
            raise UpstreamError("The engine failed on this request.", retryable=False, status=500)
        piece = self._piece(number * self._n + delta.index, delta)
        if piece.reasoning and not (piece.text or piece.tool_calls):
            self._reasoning_tokens += len(delta.token_ids)
        return Progress(pieces=[piece], counts=self._counts())

    def _counts(self) -> Counts:
        return Counts(
            prompt_tokens=sum(self._prompt_tokens),
            completion_tokens=sum(self._completion_tokens.values()),
            cached_tokens=sum(self._cached_tokens),
            reasoning_tokens=self._reasoning_tokens,
            engine_us=self._engine_us,
        )

    def _piece(self, index: int, delta: Delta) -> Piece:
        finish = _FINISH_WORDS[delta.finish_reason] if delta.finish_reason is not None else None
        piece = Piece(index=index, text=delta.text)
        if self._new_parser is not None:
            piece = self._parsed(index, delta.text, finish)
        else:
            piece.finish_reason = finish
        piece.token_ids = delta.token_ids
        piece.logprobs = delta.logprobs
        piece.prompt_logprobs = delta.prompt_logprobs
        piece.stop_reason = delta.stop_reason
        return piece

    def _parsed(self, index: int, text: str, finish: str | None) -> Piece:
        assert self._new_parser is not None
        parser = self._parsers.get(index)
        if parser is None:
            parser = self._parsers[index] = self._new_parser()
        piece = parser.feed(text)
        piece.index = index
        if finish is None:
            return piece
        rest = parser.finish(finish)
        return Piece(
            index=index,
            text=piece.text + rest.text,
            reasoning=piece.reasoning + rest.reasoning,
            tool_calls=piece.tool_calls + rest.tool_calls,
            finish_reason=rest.finish_reason or finish,
        )


async def _closable(deltas: AsyncIterator[Delta]) -> Any:
    """The protocol says AsyncIterator; closing is what aborts, so it is made sure that there is a close."""
    try:
        async for delta in deltas:
            yield delta
    finally:
        close = getattr(deltas, "aclose", None)
        if close is not None:
            await close()


async def _interleave(streams: list[AsyncIterator[Delta]]) -> Any:
    """(stream number, delta) in order of arrival; the first failure ends all."""
    queue: asyncio.Queue[tuple[int, Delta | Exception | None]] = asyncio.Queue(maxsize=64)

    async def drain(number: int, deltas: AsyncIterator[Delta]) -> None:
        try:
            async with aclosing(_closable(deltas)) as closing:
                async for delta in closing:
                    await queue.put((number, delta))
        except Exception as exc:  # noqa: BLE001 - handed over and raised by the reader below
            await queue.put((number, exc))
        else:
            await queue.put((number, None))

    tasks = [asyncio.ensure_future(drain(number, deltas)) for number, deltas in enumerate(streams)]
    running = len(tasks)
    try:
        while running:
            number, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
                continue
            yield number, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

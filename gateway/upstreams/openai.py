"""Any OpenAI-compatible server as an upstream: another Weir, vLLM, SGLang, a public API.

The call's own body goes out with the upstream's model name. A plain call is asked for plainly, unless a hard budget may
have to cut it: then its answer comes as a stream too. Where no usage comes, the counts are ours and flagged
`estimated`. The upstream's key is only ever in one request header: never in a message, a log or a repr.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cached_property
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from engine.types import TokenLogprob
from gateway.calls import Call, Counts, Endpoint, Piece, ToolCallPiece
from gateway.upstreams.base import Progress, UpstreamError

MAX_LINE_BYTES = 8 * 1024 * 1024
_PATHS = {Endpoint.CHAT: "/chat/completions", Endpoint.COMPLETIONS: "/completions"}
_RETRYABLE_STATUSES = frozenset({408, 409, 429, 500, 502, 503, 504, 520, 522, 524, 529})


class OpenAIUpstreamSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach one model of one server. `api_key` is asked for at every call, so that rotating it needs no restart.

    `connect_timeout_s` bounds the connection, `first_token_timeout_s` the wait for the first byte of the answer,
    `idle_timeout_s` the gap between two frames.
    """

    name: str
    model: str
    base_url: str
    remote_model: str = ""
    connect_timeout_s: float = 5.0
    first_token_timeout_s: float = 120.0
    idle_timeout_s: float = 60.0


class OpenAIUpstream:
    """One model on one server."""

    def __init__(
        self,
        spec: OpenAIUpstreamSpec,
        session: aiohttp.ClientSession,
        api_key: Callable[[], str | None],
        count_tokens: Callable[[str], int],
    ) -> None:
        """Args: count_tokens estimates the tokens of a text, for answers that come without usage."""
        self._spec = spec
        self._session = session
        self._api_key = api_key
        self._count_tokens = count_tokens
        base = spec.base_url.rstrip("/")
        self._urls = {endpoint: URL(base + path) for endpoint, path in _PATHS.items()}
        self._timeout = aiohttp.ClientTimeout(
            total=None, connect=spec.connect_timeout_s, sock_read=spec.first_token_timeout_s
        )

    def __repr__(self) -> str:
        return f"OpenAIUpstream({self._spec.name!r}, {self._spec.model!r})"

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def model(self) -> str:
        return self._spec.model

    @cached_property
    def revision(self) -> str:
        """Of weights elsewhere nothing is known: name and address stand for them."""
        return hashlib.sha256(f"{self._spec.base_url} {self._spec.remote_model or self.model}".encode()).hexdigest()

    async def generate(self, call: Call, attempt: int) -> AsyncIterator[Progress]:
        """Raises: UpstreamError; retryable for connection trouble, timeouts, 429 and 5xx."""
        reader = _StreamReader(call, self._count_tokens)
        if call.sampling.prompt_logprobs is not None:
            raise UpstreamError(
                f"The model `{self.model}` gives no log-probabilities of an echoed prompt.",
                retryable=False,
                status=400,
                param="echo",
                code="unsupported_parameter",
            )
        if call.sampling.max_tokens == 0:  # an echo and nothing else, which needs nobody
            yield reader.nothing()
            return
        async with self._post(call, attempt) as response:
            if response.status != 200:
                raise await self._refused(response)
            if response.content_type == "application/json":
                yield reader.read_whole(self._decoded(await response.read()))
            else:
                async for data in self._lines(response):
                    if data == b"[DONE]":
                        break
                    progress = reader.read(self._decoded(data))
                    if progress is not None:
                        yield progress
        yield reader.finish(self._spec.name)

    async def close(self) -> None:
        """The session belongs to the application, which closes it."""

    @contextlib.asynccontextmanager
    async def _post(self, call: Call, attempt: int) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {"content-type": "application/json", "x-request-id": f"{call.request_id}-{attempt}"}
        if key := self._api_key():
            headers["authorization"] = f"Bearer {key}"
        try:
            async with self._session.post(
                self._urls[call.endpoint],
                data=msgspec.json.encode(self._body(call)),
                headers=headers,
                timeout=self._timeout,
                allow_redirects=False,
            ) as response:
                yield response
        except TimeoutError as exc:
            raise UpstreamError(f"The upstream {self.name!r} did not answer in time.", retryable=True) from exc
        except aiohttp.ClientError as exc:
            raise UpstreamError(f"The upstream {self.name!r} cannot be reached.", retryable=True) from exc

    def _body(self, call: Call) -> dict[str, Any]:
        body = {key: value for key, value in call.body.items() if key not in _OURS}
        body["model"] = self._spec.remote_model or self._spec.model
        body.pop("stream_options", None)
        body.pop("echo", None)  # the prompt is put before the answer here
        body["stream"] = call.stream or call.metered
        if body["stream"]:
            body["stream_options"] = {"include_usage": True}
        if call.sampling.max_tokens is not None:
            key = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
            body[key] = call.sampling.max_tokens
        return body

    async def _lines(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """The `data:` payloads of the stream."""
        buffer = b""
        async for chunk in _idle_bounded(response.content.iter_any(), self._spec.idle_timeout_s, self.name):
            buffer += chunk
            *lines, buffer = buffer.split(b"\n")
            if len(buffer) > MAX_LINE_BYTES:
                raise UpstreamError(f"The upstream {self.name!r} sent an over-long line.", retryable=False)
            for line in lines:
                if line.startswith(b"data:"):
                    yield line[5:].strip()
        if buffer.startswith(b"data:"):
            yield buffer[5:].strip()

    def _decoded(self, data: bytes) -> dict[str, Any]:
        try:
            chunk = msgspec.json.decode(data)
        except msgspec.DecodeError as exc:
            raise UpstreamError(f"The upstream {self.name!r} sent no valid JSON.", retryable=True) from exc
        if not isinstance(chunk, dict):
            raise UpstreamError(f"The upstream {self.name!r} sent no JSON object.", retryable=True)
        if error := chunk.get("error"):
            message = error.get("message") if isinstance(error, dict) else error
            raise UpstreamError(f"The upstream {self.name!r} failed: {_short(message)}", retryable=True, status=502)
        return chunk

    async def _refused(self, response: aiohttp.ClientResponse) -> UpstreamError:
        status = response.status
        retryable = status in _RETRYABLE_STATUSES or status >= 500
        body = await response.content.read(65536)
        error: Any = None
        with contextlib.suppress(msgspec.DecodeError):
            document = msgspec.json.decode(body)
            error = document.get("error") if isinstance(document, dict) else None
        detail = error if isinstance(error, dict) else {}
        if status in (401, 403):
            # The operator's key was refused, which is none of the caller's business.
            return UpstreamError(f"The upstream {self.name!r} refused our credentials.", retryable=True, status=status)
        return UpstreamError(
            _short(detail.get("message")) or f"The upstream {self.name!r} answered {status}.",
            retryable=retryable,
            status=status,
            retry_after_s=_seconds(response.headers.get("retry-after")),
            code=detail.get("code") if isinstance(detail.get("code"), str) else None,
            param=detail.get("param") if isinstance(detail.get("param"), str) else None,
        )


# Fields that are ours: they never leave the gateway.
_OURS = frozenset({"truncation", "priority", "metadata", "store", "service_tier", "prompt_cache_key", "weir"})


class _StreamReader:
    """One answer's chunks as pieces and counts."""

    def __init__(self, call: Call, count_tokens: Callable[[str], int]) -> None:
        self._call = call
        self._count_tokens = count_tokens
        self._counts = Counts(prompt_tokens=call.num_prompt_tokens, estimated=True)
        self._finished: set[int] = set()
        self._estimate = 0

    def read(self, chunk: dict[str, Any]) -> Progress | None:
        """None for a chunk that says nothing."""
        pieces = [self._piece(choice) for choice in chunk.get("choices") or [] if isinstance(choice, dict)]
        if isinstance(usage := chunk.get("usage"), dict):
            self._take_usage(usage)
        elif self._counts.estimated:
            self._estimate += sum(self._count_tokens(piece.text + piece.reasoning) for piece in pieces)
            self._counts = msgspec.structs.replace(self._counts, completion_tokens=self._estimate)
        if not pieces and self._counts.estimated:
            return None
        return Progress(pieces=pieces, counts=self._counts)

    def read_whole(self, answer: dict[str, Any]) -> Progress:
        """A plain answer: every choice in one piece."""
        for choice in answer.get("choices") or []:
            if isinstance(choice, dict) and isinstance(choice.get("message"), dict):
                choice["delta"] = choice["message"]
        return self.read(answer) or Progress(pieces=[], counts=self._counts)

    def nothing(self) -> Progress:
        """The answer to a prompt that nothing is to be generated for."""
        pieces = [Piece(index=index, finish_reason="length") for index in range(self._call.num_choices)]
        return Progress(pieces=pieces, counts=self._counts)

    def finish(self, upstream: str) -> Progress:
        """Raises: UpstreamError when a choice never finished: a cut stream must not pass for an answer."""
        if len(self._finished) < self._call.num_choices:
            raise UpstreamError(f"The upstream {upstream!r} ended its answer early.", retryable=True, status=502)
        return Progress(pieces=[], counts=self._counts)

    def _take_usage(self, usage: dict[str, Any]) -> None:
        prompt_details = usage.get("prompt_tokens_details") or {}
        completion_details = usage.get("completion_tokens_details") or {}
        prompt = _count(usage.get("prompt_tokens"))
        self._counts = Counts(
            prompt_tokens=prompt,
            completion_tokens=_count(usage.get("completion_tokens")),
            cached_tokens=min(prompt, _count(prompt_details.get("cached_tokens"))),
            reasoning_tokens=_count(completion_details.get("reasoning_tokens")),
        )

    def _piece(self, choice: dict[str, Any]) -> Piece:
        delta = choice.get("delta") or {}
        index = _count(choice.get("index"))
        finish = choice.get("finish_reason")
        piece = Piece(
            index=index,
            text=_text(delta.get("content")) or _text(choice.get("text")),
            reasoning=_text(delta.get("reasoning_content")) or _text(delta.get("reasoning")),
            tool_calls=[
                _tool_piece(call, number)
                for number, call in enumerate(delta.get("tool_calls") or [])
                if isinstance(call, dict)
            ],
            logprobs=_logprobs(choice.get("logprobs")),
        )
        if isinstance(finish, str) and index not in self._finished:
            self._finished.add(index)
            piece.finish_reason = finish
        return piece


async def _idle_bounded(chunks: AsyncIterator[bytes], idle_s: float, name: str) -> AsyncIterator[bytes]:
    iterator = aiter(chunks)
    while True:
        try:
            async with asyncio.timeout(idle_s):
                chunk = await anext(iterator)
        except StopAsyncIteration:
            return
        except TimeoutError as exc:
            raise UpstreamError(f"The upstream {name!r} went silent.", retryable=True) from exc
        yield chunk


def _tool_piece(call: dict[str, Any], number: int) -> ToolCallPiece:
    """Calls of a plain answer have no index: their place stands for it."""
    function = call.get("function") or {}
    return ToolCallPiece(
        index=_count(call.get("index", number)),
        id=call.get("id") if isinstance(call.get("id"), str) else None,
        name=function.get("name") if isinstance(function.get("name"), str) else None,
        arguments=_text(function.get("arguments")),
    )


def _logprobs(value: Any) -> list[TokenLogprob] | None:
    """Of a chat's `content` list, or of a completion's lists side by side."""
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("content"), list):
        return [_logprob(entry) for entry in value["content"] if isinstance(entry, dict)]
    if isinstance(value.get("tokens"), list):
        return list(_legacy_logprobs(value))
    return None


def _legacy_logprobs(lists: dict[str, Any]) -> Iterator[TokenLogprob]:
    logprobs, tops = lists.get("token_logprobs") or [], lists.get("top_logprobs") or []
    for number, token in enumerate(lists["tokens"]):
        top = tops[number] if number < len(tops) and isinstance(tops[number], dict) else {}
        entry: dict[str, Any] = {
            "token": token,
            "logprob": logprobs[number] if number < len(logprobs) else None,
            "top_logprobs": [{"token": text, "logprob": logprob} for text, logprob in top.items()],
        }
        yield _logprob(entry)


def _logprob(entry: dict[str, Any]) -> TokenLogprob:
    text = _text(entry.get("token"))
    logprob = entry.get("logprob")
    return TokenLogprob(
        token_id=-1,
        text=text,
        bytes=bytes(entry.get("bytes") or text.encode()),
        logprob=float(logprob) if isinstance(logprob, int | float) else 0.0,
        top=tuple(_logprob(other) for other in entry.get("top_logprobs") or [] if isinstance(other, dict)),
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _short(value: Any) -> str:
    return value[:300] if isinstance(value, str) else ""


def _seconds(value: str | None) -> float | None:
    try:
        return max(0.0, float(value)) if value else None
    except ValueError:
        return None

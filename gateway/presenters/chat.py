"""/v1/chat/completions: pieces as chunks, choices as an answer (wire rules: `gateway/streaming.py`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from msgspec import UNSET, UnsetType

from gateway.calls import Choice, Piece, ToolCallPiece
from gateway.pipeline import Exchange
from gateway.presenters import common
from gateway.schemas.chat import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatRequest,
    FunctionCallDelta,
    FunctionCallOut,
    MessageOut,
    ToolCallDelta,
    ToolCallOut,
)
from gateway.schemas.common import Usage
from gateway.streaming import DONE, frame


class ChatPresenter:
    """Writes one chat answer, streamed or whole."""

    def __init__(self, request: ChatRequest, exchange: Exchange) -> None:
        self._exchange = exchange
        self._head = common.head_of("chatcmpl-", exchange.call, exchange.fingerprint)
        options = request.stream_options
        self._include_usage = bool(options and options.include_usage)
        self._continuous_usage = bool(options and options.continuous_usage_stats)
        self._top = request.top_logprobs or 0
        self._token_ids = bool(request.return_token_ids)
        self._tier: str | UnsetType = (request.service_tier and exchange.call.service_tier) or UNSET

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """SSE frames: a role chunk per choice in order, deltas, one finish chunk per choice, usage, [DONE]."""
        exchange = self._exchange
        begun = False
        async for pieces in exchange.pieces():
            if not begun:
                begun = True
                yield b"".join(self._role_chunk(index) for index in range(exchange.call.num_choices))
            chunks = b"".join(self._chunks(piece) for piece in pieces if not piece.empty or self._token_ids)
            if chunks:
                yield chunks
        if self._include_usage:
            yield frame(self._chunk([], usage=common.usage(exchange.counts)))
        yield DONE

    def _role_chunk(self, index: int) -> bytes:
        chunk = self._chunk([ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content=""))])
        if self._token_ids and index == 0:
            chunk.prompt_token_ids = self._exchange.call.prompts[0]
        return frame(chunk)

    def _chunks(self, piece: Piece) -> bytes:
        """A piece's delta, then its finish chunk: an empty delta with the reason, once per choice."""
        out = b""
        if piece.text or piece.reasoning or piece.tool_calls or piece.logprobs or (self._token_ids and piece.token_ids):
            out = frame(self._chunk([self._delta_choice(piece)]))
        if piece.finish_reason is not None:
            out += frame(self._finish_chunk(piece))
        return out

    def _delta_choice(self, piece: Piece) -> ChatChunkChoice:
        delta = ChatDelta()
        if piece.reasoning:
            delta.reasoning_content = piece.reasoning
        if piece.text:
            delta.content = piece.text
        if piece.tool_calls:
            delta.tool_calls = [tool_call_delta(call) for call in piece.tool_calls]
        choice = ChatChunkChoice(
            index=piece.index, delta=delta, logprobs=common.chat_logprobs(piece.logprobs or None, self._top)
        )
        if self._token_ids:
            choice.token_ids = piece.token_ids
        return choice

    def _finish_chunk(self, piece: Piece) -> ChatChunk:
        choice = ChatChunkChoice(index=piece.index, delta=ChatDelta(), finish_reason=piece.finish_reason)
        if piece.stop_reason is not None:
            choice.stop_reason = piece.stop_reason
        chunk = self._chunk([choice])
        chunk.weir = self._exchange.note()
        return chunk

    def _chunk(self, choices: list[ChatChunkChoice], *, usage: Usage | None = None) -> ChatChunk:
        chunk = ChatChunk(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=choices,
            system_fingerprint=self._head.system_fingerprint,
            service_tier=self._tier,
        )
        if usage is not None:
            chunk.usage = usage
        elif self._continuous_usage:
            chunk.usage = common.usage(self._exchange.counts)
        elif self._include_usage:
            chunk.usage = None
        return chunk

    def whole(self, choices: list[Choice]) -> ChatCompletion:
        """The answer of a plain call."""
        exchange = self._exchange
        answer = ChatCompletion(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=[self._choice(choice) for choice in choices],
            usage=common.usage(exchange.counts),
            system_fingerprint=self._head.system_fingerprint,
            service_tier=self._tier,
            weir=exchange.note(),
        )
        if self._token_ids:
            answer.prompt_token_ids = exchange.call.prompts[0]
        return answer

    def _choice(self, choice: Choice) -> ChatChoice:
        out = ChatChoice(
            index=choice.index,
            message=message_out(choice),
            finish_reason=choice.finish_reason or "stop",
            logprobs=common.chat_logprobs(choice.logprobs, self._top),
        )
        if choice.stop_reason is not None:
            out.stop_reason = choice.stop_reason
        if self._token_ids:
            out.token_ids = choice.token_ids
        return out


def message_out(choice: Choice) -> MessageOut:
    """The assistant's message. Content is null where there are only tool calls or only reasoning."""
    message = MessageOut(content=choice.text)
    if not choice.text and (choice.tool_calls or choice.reasoning):
        message.content = None
    if choice.reasoning:
        message.reasoning_content = choice.reasoning
    if choice.tool_calls:
        message.tool_calls = [
            ToolCallOut(id=call.id or "", function=FunctionCallOut(name=call.name or "", arguments=call.arguments))
            for call in choice.tool_calls
        ]
    return message


def tool_call_delta(call: ToolCallPiece) -> ToolCallDelta:
    """`id`, `type`, `name` and an empty `arguments` only in a call's first delta; later ones only add arguments."""
    delta = ToolCallDelta(index=call.index, function=FunctionCallDelta(arguments=call.arguments))
    if call.id is not None:
        delta.id, delta.type = call.id, "function"
        delta.function = FunctionCallDelta(name=call.name, arguments=call.arguments)
    return delta

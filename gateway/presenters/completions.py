"""/v1/completions: pieces as chunks, choices as an answer; `echo` puts the prompt in front."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from msgspec import UNSET

from engine.types import TokenLogprob
from gateway.calls import Choice, Piece
from gateway.completion_calls import BuiltCompletion
from gateway.pipeline import Exchange
from gateway.presenters import common
from gateway.schemas.common import Usage
from gateway.schemas.completions import Completion, CompletionChoice, CompletionLogprobs, CompletionRequest
from gateway.streaming import DONE, frame


class CompletionPresenter:
    """Writes one completion answer."""

    def __init__(self, request: CompletionRequest, exchange: Exchange, built: BuiltCompletion) -> None:
        self._exchange = exchange
        self._head = common.head_of("cmpl-", exchange.call, exchange.fingerprint)
        options = request.stream_options
        self._include_usage = bool(options and options.include_usage)
        self._continuous_usage = bool(options and options.continuous_usage_stats)
        self._echo = bool(request.echo)
        self._logprobs = request.logprobs
        self._token_ids = bool(request.return_token_ids)
        self._built = built
        self._n = exchange.call.sampling.n
        self._offsets: dict[int, int] = {}
        self._echoed: set[int] = set()

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """SSE frames; text and finish_reason may share one, as OpenAI's legacy stream does."""
        async for pieces in self._exchange.pieces():
            chunks = b"".join(self._frame(piece) for piece in pieces if self._visible(piece))
            if chunks:
                yield chunks
        if self._include_usage:
            yield frame(self._answer([], common.usage(self._exchange.counts)))
        yield DONE

    def _visible(self, piece: Piece) -> bool:
        first_echo = self._echo and piece.index not in self._echoed
        return not piece.empty or first_echo or (self._token_ids and bool(piece.token_ids))

    def _frame(self, piece: Piece) -> bytes:
        answer = self._answer([self._choice(piece)], None)
        if piece.finish_reason is not None:
            answer.weir = self._exchange.note()
        return frame(answer)

    def whole(self, choices: list[Choice]) -> Completion:
        """The answer of a plain call."""
        pieces = [
            Piece(
                index=choice.index,
                text=choice.text,
                token_ids=choice.token_ids,
                logprobs=choice.logprobs,
                prompt_logprobs=choice.prompt_logprobs,
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
            )
            for choice in choices
        ]
        answer = self._answer([self._choice(piece) for piece in pieces], common.usage(self._exchange.counts))
        answer.weir = self._exchange.note()
        return answer

    def _answer(self, choices: list[CompletionChoice], usage: Usage | None) -> Completion:
        answer = Completion(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=choices,
            system_fingerprint=self._head.system_fingerprint,
        )
        if usage is not None:
            answer.usage = usage
        elif self._continuous_usage:
            answer.usage = common.usage(self._exchange.counts)
        elif self._include_usage:
            answer.usage = None
        return answer

    def _choice(self, piece: Piece) -> CompletionChoice:
        number = piece.index // self._n
        echo = self._echo and piece.index not in self._echoed
        prompt_text = self._built.prompt_texts[number] if echo else ""
        choice = CompletionChoice(
            index=piece.index,
            text=prompt_text + piece.text,
            finish_reason=piece.finish_reason,
            logprobs=self._logprob_lists(piece, number, echo=echo),
            stop_reason=UNSET if piece.stop_reason is None else piece.stop_reason,
        )
        if self._token_ids:
            choice.token_ids = piece.token_ids
            if piece.index not in self._echoed:
                choice.prompt_token_ids = self._exchange.call.prompts[number]
        self._echoed.add(piece.index)
        return choice

    def _logprob_lists(self, piece: Piece, number: int, *, echo: bool) -> CompletionLogprobs | None:
        if self._logprobs is None:
            return None
        entries: list[TokenLogprob | None] = list(piece.logprobs or [])
        if echo:
            entries = [*(piece.prompt_logprobs or []), *entries]
        if not entries and piece.finish_reason is None:
            return None
        lists = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for entry in entries:
            self._append(lists, piece.index, entry, number)
        return lists

    def _append(self, lists: CompletionLogprobs, index: int, entry: TokenLogprob | None, number: int) -> None:
        """The first echoed token has no probability: its entries are null, its text comes from the tokenizer."""
        offset = self._offsets.get(index, 0)
        lists.text_offset.append(offset)
        if entry is None:
            text = self._built.first_token_text(number)
            lists.tokens.append(text)
            lists.token_logprobs.append(None)
            lists.top_logprobs.append(None)
            self._offsets[index] = offset + len(text)
            return
        lists.tokens.append(entry.text)
        lists.token_logprobs.append(common.clamp(entry.logprob))
        top = {other.text: common.clamp(other.logprob) for other in reversed(entry.top[: self._logprobs or 0])}
        top[entry.text] = common.clamp(entry.logprob)
        lists.top_logprobs.append(top)
        self._offsets[index] = offset + len(entry.text)

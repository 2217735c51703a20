"""One inference request in the gateway's own words: what every endpoint becomes before the pipeline sees it, and what
comes back out. Endpoints differ in how they read a body (`controllers`) and how they write an answer (`presenters`);
between the two there is only a `Call` and its `Piece`s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from billing.principal import Principal
from cache.request import CacheControl
from engine.types import Priority, SamplingParams, TokenLogprob


class Endpoint(StrEnum):
    """The routes that go through the pipeline; a metric label and a column of the ledger."""

    CHAT = "chat.completions"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDINGS = "embeddings"


class ToolCallPiece(msgspec.Struct, kw_only=True):
    """A part of a tool call. `id` and `name` stand in a call's first piece only; `arguments` is new JSON text."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class Piece(msgspec.Struct, kw_only=True):
    """What one choice made since its last piece. `finish_reason` is OpenAI's word, on the choice's last piece."""

    index: int
    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallPiece] = []
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    @property
    def empty(self) -> bool:
        """Nothing a client would see."""
        return not (self.text or self.reasoning or self.tool_calls or self.logprobs or self.finish_reason)


class Counts(msgspec.Struct, kw_only=True):
    """Tokens of a call so far: the prompt once per prompt, completions summed over all sequences (best_of too)."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    engine_us: int = 0
    estimated: bool = False  # an upstream sent no usage


class OutputParser(Protocol):
    """Splits one choice's raw text into content, reasoning and tool calls, the same at every split of the text."""

    def feed(self, text: str) -> Piece:
        """What is certain after `text`; the piece's index is filled in by the caller."""

    def finish(self, finish_reason: str) -> Piece:
        """The held-back rest; its `finish_reason` may differ (a tool call was made)."""


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """Dimensions for reports; they never decide who pays."""

    conversation_id: str | None = None
    conversation_source: str = "none"
    end_user: str | None = None
    tags: Mapping[str, str] = {}


class Call(msgspec.Struct, kw_only=True):
    """One inference request.

    `model` is the name or alias asked for. `prompts` are token ids, one list a prompt. `body` is the request as plain
    objects (without nulls): for the cache's key and for OpenAI upstreams. `new_parser` makes one output parser a
    choice, None passes text through. `batch`: at batch price. `metered`: a hard
    budget may cut it, so it must be watched as it grows. `prefer_cheaper`: the caller's wish among a route's models.
    `deadline` is on the monotonic clock; `own_deadline`: the caller gave it (x-weir-timeout), so it binds nobody else.
    """

    request_id: str
    endpoint: Endpoint
    principal: Principal
    model: str
    prompts: list[list[int]]
    sampling: SamplingParams
    body: dict[str, Any]
    stream: bool
    deadline: float
    own_deadline: bool = False
    attribution: Attribution = Attribution()
    cache_control: CacheControl = CacheControl()
    priority: Priority = Priority.STANDARD
    service_tier: str = "default"
    new_parser: Callable[[], OutputParser] | None = None
    retrieval: bool = False
    batch: bool = False
    metered: bool = False
    prefer_cheaper: bool = False
    dropped_turns: int = 0
    estimated_prompt_tokens: int = 0
    accepted_at: float = msgspec.field(default_factory=time.monotonic)

    @property
    def num_prompt_tokens(self) -> int:
        """What the prompt is held at: exact where the ids are known, else an upper estimate."""
        return sum(map(len, self.prompts)) or self.estimated_prompt_tokens

    @property
    def num_sequences(self) -> int:
        """Sequences that are generated, whether they are answered with or not (best_of)."""
        return len(self.prompts) * max(self.sampling.n, self.sampling.best_of or 0)

    @property
    def num_choices(self) -> int:
        """Choices the answer has."""
        return len(self.prompts) * self.sampling.n


class Choice(msgspec.Struct, kw_only=True):
    """A whole choice, gathered from its pieces."""

    index: int
    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallPiece] = []
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def add(self, piece: Piece) -> None:
        """Appends a piece. Lists grow in place: copying them would be quadratic in the answer's length."""
        self.text += piece.text
        self.reasoning += piece.reasoning
        self.token_ids.extend(piece.token_ids)
        if piece.logprobs is not None:
            if self.logprobs is None:
                self.logprobs = []
            self.logprobs.extend(piece.logprobs)
        if piece.prompt_logprobs is not None:
            self.prompt_logprobs = piece.prompt_logprobs
        for call in piece.tool_calls:
            self._add_call(call)
        if piece.finish_reason is not None:
            self.finish_reason, self.stop_reason = piece.finish_reason, piece.stop_reason

    def _add_call(self, piece: ToolCallPiece) -> None:
        if piece.index == len(self.tool_calls):
            self.tool_calls.append(msgspec.structs.replace(piece))
            return
        call = self.tool_calls[piece.index]
        call.arguments += piece.arguments


def gather(choices: dict[int, Choice], pieces: Sequence[Piece]) -> None:
    """Adds pieces to their choices."""
    for piece in pieces:
        choice = choices.get(piece.index)
        if choice is None:
            choice = choices[piece.index] = Choice(index=piece.index)
        choice.add(piece)

"""From deltas to a stored answer and back: what is replayed is well formed whatever filled it.

`AnswerBuilder` gathers the deltas of a generation (any number of choices, tool calls in fragments) into a
`CachedAnswer`. `replay` turns a stored answer into deltas in the order that streaming clients need: every choice's
role first, in the order of their indices, then content and tool calls (id and name once, in a call's first delta),
then the finish reason. The gateway frames them, and adds usage and the end mark.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from cache.entry import CachedAnswer, CachedChoice, CachedToolCall, CachedUsage

CHUNK_CHARS = 512  # a replayed answer is sent in pieces, so that one frame never holds a whole book


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fragment of the call with this index; `id` and `name` only in a call's first."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class ReplayDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one choice says next."""

    index: int
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: list[dict[str, Any]] | None = None
    finish_reason: str | None = None


class AnswerBuilder:
    """Deltas in, a `CachedAnswer` out. `num_choices` is the `n` asked for."""

    def __init__(self, *, model: str, created: int, request_id: str, num_choices: int = 1) -> None:
        self._model, self._created, self._request_id = model, created, request_id
        self._num_choices = num_choices
        self._choices: dict[int, _ChoiceBuilder] = {}

    def add(self, delta: ReplayDelta) -> None:
        """Raises: ValueError for an index outside the choices asked for."""
        if not 0 <= delta.index < self._num_choices:
            raise ValueError(f"choice {delta.index} of {self._num_choices}")
        self._choices.setdefault(delta.index, _ChoiceBuilder()).add(delta)

    def build(self, usage: CachedUsage, *, system_fingerprint: str | None = None) -> CachedAnswer:
        """The answer so far; `entry.why_not_stored` tells whether it is whole."""
        return CachedAnswer(
            model=self._model,
            created=self._created,
            request_id=self._request_id,
            choices=tuple(self._choices[index].build(index) for index in sorted(self._choices)),
            usage=usage,
            num_choices=self._num_choices,
            system_fingerprint=system_fingerprint,
        )


class _ChoiceBuilder:
    def __init__(self) -> None:
        self._role = "assistant"
        self._texts: dict[str, list[str]] = {"content": [], "reasoning_content": [], "refusal": []}
        self._calls: dict[int, dict[str, str]] = {}
        self._logprobs: list[dict[str, Any]] | None = None
        self._finish_reason: str | None = None

    def add(self, delta: ReplayDelta) -> None:
        self._role = delta.role or self._role
        for name, pieces in self._texts.items():
            piece = getattr(delta, name)
            if piece is not None:
                pieces.append(piece)
        for fragment in delta.tool_calls:
            call = self._calls.setdefault(fragment.index, {"id": "", "name": "", "arguments": ""})
            call["id"] = call["id"] or fragment.id or ""
            call["name"] = call["name"] or fragment.name or ""
            call["arguments"] += fragment.arguments
        if delta.logprobs is not None:
            self._logprobs = [*(self._logprobs or []), *delta.logprobs]
        self._finish_reason = delta.finish_reason or self._finish_reason

    def build(self, index: int) -> CachedChoice:
        texts = {name: "".join(pieces) if pieces else None for name, pieces in self._texts.items()}
        calls = tuple(CachedToolCall(**self._calls[number]) for number in sorted(self._calls))
        return CachedChoice(
            index=index,
            role=self._role,
            # a role delta says "" also where there will be calls only, whose message has null
            content=texts["content"] or (None if calls else texts["content"]),
            reasoning_content=texts["reasoning_content"],
            refusal=texts["refusal"],
            tool_calls=calls,
            finish_reason=self._finish_reason,
            logprobs=self._logprobs,
        )


def replay(answer: CachedAnswer) -> Iterator[ReplayDelta]:
    """The deltas of a stored answer, choice by choice after all roles."""
    for choice in answer.choices:
        yield ReplayDelta(index=choice.index, role=choice.role, content="")
    for choice in answer.choices:
        for piece in _pieces(choice.reasoning_content):
            yield ReplayDelta(index=choice.index, reasoning_content=piece)
        yield from _content(choice)
        if choice.refusal is not None:
            yield ReplayDelta(index=choice.index, refusal=choice.refusal)
        for number, call in enumerate(choice.tool_calls):
            first = ToolCallDelta(index=number, id=call.id, name=call.name)
            yield ReplayDelta(index=choice.index, tool_calls=(first,))
            for piece in _pieces(call.arguments):
                fragment = ToolCallDelta(index=number, arguments=piece)
                yield ReplayDelta(index=choice.index, tool_calls=(fragment,))
        yield ReplayDelta(index=choice.index, finish_reason=choice.finish_reason)


def _content(choice: CachedChoice) -> Iterator[ReplayDelta]:
    """Log-probabilities belong to tokens, which no longer have bounds here: they go with the whole text at once."""
    if choice.logprobs is not None:
        yield ReplayDelta(index=choice.index, content=choice.content or "", logprobs=choice.logprobs)
        return
    for piece in _pieces(choice.content):
        yield ReplayDelta(index=choice.index, content=piece)


def _pieces(text: str | None) -> Iterator[str]:
    for start in range(0, len(text or ""), CHUNK_CHARS):
        yield (text or "")[start : start + CHUNK_CHARS]

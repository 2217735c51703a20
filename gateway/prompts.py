"""From messages and texts to token ids, once a request: limits, holds, cache and engine all count the same ids.

Short prompts are tokenised on the event loop, because a thread's hand-over costs more than the work; longer ones, and
every template with something of the caller's in its logic, in a small pool of threads of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from engine.chat_messages import TemplateTraits, normalise_messages
from engine.chat_template import ChatTemplate
from engine.errors import InvalidRequest as EngineInvalidRequest
from engine.errors import ModelLoadError
from engine.tokenizer import Tokenizer
from engine.types import ModelInfo
from gateway.errors import InvalidRequest
from gateway.faults import as_gateway_error

T = TypeVar("T")

INLINE_CHARS = 2048  # about 0.1 ms of tokenising, what a hand-over to a thread costs
NUM_THREADS = 4
MIDDLE_HEAD_SHARE = 0.5


class Prompt(msgspec.Struct, frozen=True):
    """Ids for the engine; `dropped_turns` counts the messages that `truncation` left out."""

    token_ids: list[int]
    dropped_turns: int = 0


class TextModel:
    """A served model's text side. `template` is None for a base model."""

    def __init__(self, info: ModelInfo, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self.info = info
        self.tokenizer = tokenizer
        self.template = template
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="prompt")

    @classmethod
    def from_info(cls, info: ModelInfo, *, template_file: str = "") -> TextModel:
        """Reads tokenizer.json and the chat template beside it. Raises: ModelLoadError."""
        folder = Path(info.path)
        tokenizer = Tokenizer.from_folder(folder)
        override = Path(template_file) if template_file else None
        return cls(info, tokenizer, ChatTemplate.from_folder(folder, tokenizer, override=override))

    def close(self) -> None:
        """Ends the threads. Closing twice is harmless."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def chat(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: dict[str, Any] | None = None,
        truncation: str = "disabled",
        reserve_tokens: int = 1,
        template_source: str | None = None,
    ) -> Prompt:
        """The rendered messages. `truncation` auto drops the oldest turns, middle those between head and tail, until
        `reserve_tokens` fit behind the prompt. `template_source` is the request's own template, where the server allows
        one. Raises: InvalidRequest for no template, or messages it refuses."""
        template = self.template if template_source is None else await self._own_template(template_source)
        if template is None:
            raise InvalidRequest(
                f"The model `{self.info.name}` has no chat template: it is a base model. Use /v1/completions.",
                param="messages",
            )

        def encode(kept: list[dict[str, Any]]) -> list[int]:
            return template.encode(
                kept,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                template_kwargs=template_kwargs,
            )

        foreign_logic = template_kwargs or template_source is not None
        size = _chars(messages) + _chars(tools) + (1 << 20 if foreign_logic else 0)
        budget = self.info.max_model_len - max(1, reserve_tokens)
        return await self._run(size, lambda: _truncated(messages, encode, truncation, budget))

    async def _own_template(self, source: str) -> ChatTemplate:
        """A caller's template, under the same limits. Raises: InvalidRequest if it does not compile."""

        def compiled() -> ChatTemplate:
            return ChatTemplate(source, self.tokenizer, name="request", is_models=False)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, compiled)
        except ModelLoadError as exc:
            raise InvalidRequest(
                "Invalid 'chat_template': the template does not compile.", param="chat_template", code="invalid_value"
            ) from exc

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """A plain prompt's ids, with one BOS where the model wants it."""
        return await self._run(len(text), lambda: self.tokenizer.encode(text, add_bos=add_special_tokens))

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """The ids as text."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    async def _run(self, size: int, work: Callable[[], T]) -> T:
        try:
            if size <= INLINE_CHARS:
                return work()
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except EngineInvalidRequest as exc:
            raise as_gateway_error(exc) from exc


class EstimatedText(TextModel):
    """Counts for a model whose tokenizer and template are not here: its prompts go out as messages, and what they take
    is told by the upstream afterwards. Ids are of the words alone, with each message's role before them."""

    def __init__(self, info: ModelInfo, tokenizer: Tokenizer) -> None:
        super().__init__(info, tokenizer, None)

    async def chat(self, messages: list[dict[str, Any]], *, tools: Any = None, **_: Any) -> Prompt:
        """Raises: InvalidRequest for messages that are none."""

        def encode() -> Prompt:
            plain = normalise_messages(messages, TemplateTraits())
            words = [f"{message['role']}\n{message['content']}\n\n" for message in plain]
            words += [_words(message["tool_calls"]) for message in plain if message.get("tool_calls")]
            if tools:
                words.append(_words(tools))
            return Prompt(self.tokenizer.encode("".join(words), add_bos=False))

        return await self._run(_chars(messages) + _chars(tools), encode)


def _words(document: Any) -> str:
    return msgspec.json.encode(document).decode()


def _chars(document: Any) -> int:
    """Of all its texts: parts of a message, arguments of calls and tools' descriptions as well as plain words."""
    count, todo = 0, [document]
    while todo:
        value = todo.pop()
        if isinstance(value, str):
            count += len(value)
        elif isinstance(value, dict):
            todo.extend(value.values())
        elif isinstance(value, list):
            todo.extend(value)
    return count


def _truncated(
    messages: list[dict[str, Any]], encode: Callable[[list[dict[str, Any]]], list[int]], truncation: str, budget: int
) -> Prompt:
    """Whole turns are dropped, never part of one, so no cut falls inside a turn's markers or a token.

    What is kept starts at a user's turn, so that no tool result stands without its call. The last such tail is kept
    even when it does not fit: the caller then gets the context's error.
    """
    ids = encode(messages)
    if truncation == "disabled" or len(ids) <= budget:
        return Prompt(ids)
    systems = [message for message in messages if message.get("role") in ("system", "developer")]
    turns = [message for message in messages if message.get("role") not in ("system", "developer")]
    # `middle` keeps the first turn as well: the task is often stated there.
    first = 1 if truncation == "middle" else 0
    starts = [number for number, turn in enumerate(turns) if turn.get("role") == "user" and number > first]
    best, dropped = ids, 0
    # A later start is a shorter prompt: the earliest that fits is found by halving.
    low, high = 0, len(starts) - 1
    while low <= high:
        middle = (low + high) // 2
        tried = encode([*systems, *turns[:first], *turns[starts[middle] :]])
        if len(tried) <= budget or middle == len(starts) - 1:
            best, dropped, high = tried, starts[middle] - first, middle - 1
        else:
            low = middle + 1
    return Prompt(best, dropped)


def truncated_ids(ids: list[int], truncation: str, budget: int) -> list[int]:
    """A plain prompt's ids within `budget`: auto keeps the end, middle keeps head and tail in equal parts."""
    if truncation == "disabled" or len(ids) <= budget or budget < 1:
        return ids
    if truncation == "auto":
        return ids[-budget:]
    head = int(budget * MIDDLE_HEAD_SHARE)
    return ids[:head] + ids[len(ids) - (budget - head) :]

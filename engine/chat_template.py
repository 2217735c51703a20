"""`ChatTemplate`: OpenAI messages to the prompt's token ids, as the model's own template says.

The template is rendered in a sandbox with a time and a size limit. The caller's words can hold no control id: before
rendering, every special token's spelling in them is replaced by one placeholder character, which the tokenizer turns
back into plain letters after the template's own special tokens were found. Templates that trim, split or search the
words work as on the real text, and for words without such spellings the ids equal the plain encoding.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes

from engine.chat_messages import TemplateTraits, normalise_messages, normalise_tools, plain_copy
from engine.errors import InvalidRequest, ModelLoadError, RequestFailed
from engine.template_sandbox import ChatEnvironment, TemplateError, TemplateLimit
from engine.tokenizer import PROBE, Tokenizer

logger = logging.getLogger(__name__)

RENDER_TIMEOUT_S = 2.0
MAX_RENDERED_CHARS = 8 << 20
_RESERVED_KWARGS = frozenset(
    {"chat_template", "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "tokenize"}
)
_SHORT_TOOL_ID = re.compile(r"\|\s*length\s*[!=]=\s*9\b")
_PLACEHOLDERS = range(0xF0000, 0xFFFFE)  # private use: no text has a meaning for them
_PLACEHOLDER_RANGE = f"{chr(_PLACEHOLDERS[0])}-{chr(_PLACEHOLDERS[-1])}"


@dataclass(frozen=True)
class RenderedChat:
    """`text` with placeholders; `literals` maps each to the caller's letters it stands for."""

    text: str
    literals: Mapping[str, str]

    @property
    def plain(self) -> str:
        """The prompt as a person reads it."""
        return self.text.translate({ord(mark): spelling for mark, spelling in self.literals.items()})


class ChatTemplate:
    """One model's template, compiled once; `encode` may be called from several threads."""

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        name: str = "chat_template",
        today: Callable[[], datetime] = datetime.now,
        system_in_user: bool = False,
        timeout_s: float = RENDER_TIMEOUT_S,
        is_models: bool = True,
    ) -> None:
        """`system_in_user` puts a system message before the first user message (models without a system role).
        `is_models`: it serves as long as the tokenizer does, which keeps its pieces; a request's own leaves nothing.

        Raises: ModelLoadError when the template does not compile.
        """
        self.name = name
        self.source = source
        self._tokenizer = tokenizer
        self._timeout_s = timeout_s
        self._environment = ChatEnvironment(today)
        try:
            self._template = self._environment.compile_template(source)
        except (jinja2.TemplateSyntaxError, ValueError, RecursionError) as exc:
            raise ModelLoadError(f"chat template {name!r} does not compile: {exc}") from exc
        self.traits = TemplateTraits(
            needs_parts=_needs_parts(self._environment.parse(source)),
            short_tool_ids=bool(_SHORT_TOOL_ID.search(source)),
            system_in_user=system_in_user,
        )
        self.reads_tools = bool(re.search(r"\btools\b", source))
        self._spellings = _SpellingGuard(tokenizer.special_spellings)
        if is_models:
            tokenizer.keep_pieces(self._own_texts())

    def _own_texts(self) -> Iterator[str]:
        """What the template writes around every caller's words, one text a shape of conversation. The words stand as
        one character that is in no template, so that pieces with it can be told from the template's own."""
        user, answer, system = ({"role": role, "content": PROBE} for role in ("user", "assistant", "system"))
        for messages in ([user], [system, user, answer, user]):
            with contextlib.suppress(Exception):  # a template may refuse either: it has nothing to keep then
                plain = normalise_messages(messages, self.traits)
                yield self._rendered(plain, None, {}, add_generation_prompt=True)

    @classmethod
    def from_folder(
        cls, folder: Path, tokenizer: Tokenizer, *, override: Path | None = None, **options: Any
    ) -> ChatTemplate | None:
        """`override`'s template, else chat_template.jinja, else tokenizer_config.json's. None: the model has none.

        Raises: ModelLoadError when the override is missing or a template does not compile.
        """
        if override is not None:
            if not override.is_file():
                raise ModelLoadError(f"chat template file {override} does not exist")
            return cls(override.read_text(encoding="utf-8"), tokenizer, name=override.name, **options)
        source = _find_source(folder)
        return None if source is None else cls(source, tokenizer, name=folder.name, **options)

    def encode(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """The prompt's ids; BOS comes from the template alone. Options and errors as `render`."""
        rendered = self.render(messages, **options)
        return self._tokenizer.encode_with_specials(rendered.text, rendered.literals)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> RenderedChat:
        """Args: messages and tools as OpenAI's API takes them; continue_final_message leaves the last message open.

        Raises: InvalidRequest for messages the template refuses or that it cannot be given; RequestFailed when the
        template itself is at fault (its name is logged).
        """
        if continue_final_message and add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt exclude each other.", param="continue_final_message"
            )
        plain = normalise_messages(messages, self.traits)
        variables = self._kwargs(template_kwargs)
        literals: dict[str, str] = {}
        guarded, plain_tools, extra = self._spellings.guard((plain, normalise_tools(tools), variables), literals)
        final = guarded[-1]
        text = self._run(guarded, plain_tools, extra, add_generation_prompt=add_generation_prompt)
        if continue_final_message:
            text = _cut_after(text, final)
        return RenderedChat(text, literals)

    def _kwargs(self, template_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
        if not template_kwargs:
            return {}
        reserved = sorted(_RESERVED_KWARGS & set(template_kwargs))
        if reserved:
            raise InvalidRequest(
                f"chat_template_kwargs must not set {reserved[0]!r}.", param=f"chat_template_kwargs.{reserved[0]}"
            )
        return plain_copy(template_kwargs, "chat_template_kwargs")

    def _rendered(self, messages: Any, tools: Any, extra: Mapping[str, Any], *, add_generation_prompt: bool) -> str:
        variables = {
            **self._tokenizer.special_tokens_map,
            **extra,
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return self._environment.render(
            self._template, variables, timeout_s=self._timeout_s, max_chars=MAX_RENDERED_CHARS
        )

    def _run(self, messages: Any, tools: Any, extra: Mapping[str, Any], *, add_generation_prompt: bool) -> str:
        try:
            return self._rendered(messages, tools, extra, add_generation_prompt=add_generation_prompt)
        except TemplateError as exc:
            raise InvalidRequest(str(exc), param="messages") from exc
        except TemplateLimit as exc:
            raise InvalidRequest(f"The messages could not be rendered: {exc}.", param="messages") from exc
        except jinja2.UndefinedError as exc:
            message = f"The model's chat template needs a field that is missing: {exc}."
            raise InvalidRequest(message, param="messages") from exc
        except Exception as exc:
            logger.exception("chat template %r failed", self.name)
            raise RequestFailed(f"chat template {self.name!r} failed: {type(exc).__name__}") from exc


class _SpellingGuard:
    """Replaces what could be read as a special token in the caller's strings by placeholder characters.

    Beside whole spellings these are a string's last letters that begin one and its first letters that end one: a
    template could put the missing part beside them.
    """

    def __init__(self, spellings: Sequence[str]) -> None:
        ordered = sorted((s for s in spellings if s), key=len, reverse=True)
        heads = {s[:n] for s in ordered for n in range(1, len(s))}
        tails = {s[n:] for s in ordered for n in range(1, len(s))}
        whole = "|".join(re.escape(s) for s in ordered)
        at_end = f"|(?:{_any_of(heads)})\\Z" if heads else ""
        at_start = f"|\\A(?:{_any_of(tails)})" if tails else ""
        self._longest = len(ordered[0]) if ordered else 0
        # Three for one: heads and tails are looked for at a text's ends alone. Tried at each of 400,000 characters they
        # held the interpreter lock for 17 ms.
        self._inside = re.compile(whole) if ordered else None
        # A whole spelling and a head begin with the first letter of one, a tail ends with a last letter: text without
        # these, which most is, needs no closer look.
        clues = {s[0] for s in ordered} | {s[-1] for s in ordered}
        self._clue = re.compile(f"[{re.escape(''.join(sorted(clues)))}{_PLACEHOLDER_RANGE}]")
        self._at_end = re.compile(whole + at_end)
        self._at_start = re.compile(whole + at_end + at_start)

    def guard(self, values: Any, literals: dict[str, str]) -> Any:
        """A copy of plain data with placeholders, noted in `literals`. The caller's own characters from the same
        range are placeholders too, so none can stand for another's text."""
        if self._inside is None:
            return values
        marks: dict[str, str] = {}
        return self._walk(values, marks, literals)

    def _walk(self, value: Any, marks: dict[str, str], literals: dict[str, str]) -> Any:
        if isinstance(value, str):
            return self._replace(value, marks, literals)
        if isinstance(value, dict):
            return {self._replace(k, marks, literals): self._walk(v, marks, literals) for k, v in value.items()}
        if isinstance(value, list):
            return [self._walk(item, marks, literals) for item in value]
        if isinstance(value, tuple):
            return tuple(self._walk(item, marks, literals) for item in value)
        return value

    def _replace(self, text: str, marks: dict[str, str], literals: dict[str, str]) -> str:
        if self._clue.search(text) is None:
            return text

        def mark(spelling: str) -> str:
            if spelling not in marks:
                if len(marks) >= len(_PLACEHOLDERS):
                    raise InvalidRequest("The messages hold too many different private-use characters.")
                marks[spelling] = chr(_PLACEHOLDERS[len(marks)])
                literals[marks[spelling]] = spelling
            return marks[spelling]

        text = _PRIVATE_USE.sub(lambda match: mark(match[0]), text)
        parts: list[str] = []
        done = 0
        for match in self._matches(text):
            parts += (text[done : match.start()], mark(match[0]))
            done = match.end()
        return "".join(parts) + text[done:] if parts else text

    def _matches(self, text: str) -> Iterator[re.Match[str]]:
        """Leftmost first, as one pattern of all would find them: a head reaches to the end, so none starts before
        the last `_longest` characters, and a tail starts at the start."""
        assert self._inside is not None
        done = 0
        if (first := self._at_start.match(text)) is not None:
            yield first
            done = first.end()
        border = max(done, len(text) - self._longest)
        for match in self._inside.finditer(text, done):
            if match.start() >= border:
                break
            yield match
            done = match.end()
        yield from self._at_end.finditer(text, max(done, border))


_PRIVATE_USE = re.compile(f"[{_PLACEHOLDER_RANGE}]")


def _any_of(texts: set[str]) -> str:
    return "|".join(re.escape(t) for t in sorted(texts, key=len, reverse=True))


def _find_source(folder: Path) -> str | None:
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        return jinja.read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        path = folder / name
        if not path.is_file():
            continue
        try:
            value = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
        except (ValueError, AttributeError) as exc:
            raise ModelLoadError(f"{path} is not valid JSON: {exc}") from exc
        if isinstance(value, list):  # several named templates: the one for plain chats
            value = next((t.get("template") for t in value if t.get("name") == "default"), None)
        if isinstance(value, str):
            return value
    return None


def _cut_after(text: str, final: Mapping[str, Any]) -> str:
    """Ends the prompt right after the last message's words, their trailing spaces restored where the template trims."""
    content = final["content"]
    if isinstance(content, list):
        content = "".join(part["text"] for part in content)
    core = content.strip()
    start = text.rfind(core) if core else -1
    if start < 0:
        raise InvalidRequest(
            "continue_final_message: the last message has no text in the prompt to go on from.", param="messages"
        )
    tail: str = content[len(content.rstrip()) :]
    return text[: start + len(core)] + tail


def _needs_parts(tree: nodes.Template) -> bool:
    """True when the template loops over `content` and never asks whether it is a string."""

    def is_content(node: nodes.Node | None) -> bool:
        if isinstance(node, nodes.Getattr):
            return node.attr == "content"
        return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "content"

    loops = any(is_content(loop.iter) for loop in tree.find_all(nodes.For))
    asks = any(
        test.name in ("string", "iterable", "mapping", "sequence") and is_content(test.node)
        for test in tree.find_all(nodes.Test)
    )
    return loops and not asks

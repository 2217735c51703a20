"""The Jinja environment chat templates run in: transformers' dialect inside a sandbox with limits on time and size.

Jinja's sandbox blocks attributes and mutation, but not nested loops, `'a' * 10**9` or a string doubled 40 times. A
thread that runs one cannot be stopped from outside, so the limits are compiled in: every loop turn and macro call
passes a check point, and everything that can make a long string asks first.
"""

from __future__ import annotations

import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_TEMPLATE_CHARS = 1 << 20
_FILTER_NAMES = (
    "abs attr batch bool count d default dictsort first float groupby int items last length list map max min reject "
    "rejectattr reverse round safe select selectattr slice sort sum unique"
)
# These print whatever they are given: its size is looked at first.
_TEXT_FILTER_NAMES = "capitalize e escape forceescape lower string strip title trim truncate upper urlencode wordcount"
_GLOBALS = ("range", "dict", "namespace", "joiner", "cycler")
_GROWING_METHODS = frozenset(
    {"replace", "join", "format", "format_map", "ljust", "rjust", "center", "zfill", "expandtabs"}
)
_WIDE_FORMAT = re.compile(r"[0-9]{5,}|\*")


class TemplateError(Exception):
    """What the template itself raised through `raise_exception`."""


class TemplateLimit(Exception):
    """A template took too long or made too much text."""


class _Limits(threading.local):
    deadline: float = float("inf")
    max_chars: int = 1 << 62
    ticks: int = 0


_limits = _Limits()


def tick() -> str:
    """A check point. Returns an empty string, as it stands where a template may print. Raises: TemplateLimit."""
    _limits.ticks += 1
    if _limits.ticks % 32 == 0 and time.monotonic() > _limits.deadline:
        raise TemplateLimit("the chat template took longer than its time limit")
    return ""


def concat(*values: Any) -> str:
    """Jinja's `~` with a bound on its result."""
    _check_size(values)
    return "".join(str(value) for value in values)


def _check_chars(count: int) -> None:
    if count > _limits.max_chars:
        raise TemplateLimit(f"the chat template makes more than {_limits.max_chars} characters")


def _check_size(value: Any) -> Any:
    """Returns the value. Raises: TemplateLimit when it would print to too much text: a list may hold one long string
    many times."""
    if isinstance(value, str | list | tuple | dict):
        _count_chars(value, _limits.max_chars)
    return value


def _count_chars(value: Any, room: int) -> int:
    """What is left of `room` after a value's text, at least. Raises: TemplateLimit below zero."""
    if isinstance(value, str):
        room -= len(value)
    elif isinstance(value, list | tuple | dict):
        room -= 2
        parts = value if not isinstance(value, dict) else [*value.keys(), *value.values()]
        for part in parts:
            room = _count_chars(part, room) - 2
    if room < 0:
        raise TemplateLimit(f"the chat template makes more than {_limits.max_chars} characters")
    return room


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for value in args:
            _check_size(value)
        return function(*args, **kwargs)

    return checked


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates. `today` gives the date that `strftime_now` prints (its time of day is midnight: a
    prompt that changes each second would never share a prefix)."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, today: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, loopcontrols],
            autoescape=False,
            finalize=_check_size,
        )
        known = self.filters
        self.filters = {name: known[name] for name in _FILTER_NAMES.split() if name in known}
        self.filters |= {name: _bounded(known[name]) for name in _TEXT_FILTER_NAMES.split() if name in known}
        self.filters |= {"tojson": _tojson, "replace": _replace, "join": _join, "indent": _indent}
        self.globals = {
            k: v for k, v in self.globals.items() if k in ("range", "dict", "namespace", "joiner", "cycler")
        }
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda fmt: _midnight(today()).strftime(fmt),
        }

    def compile_template(self, source: str) -> jinja2.Template:
        """Raises: jinja2.TemplateSyntaxError; ValueError when it is too long."""
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ValueError(f"the chat template has {len(source)} characters, more than {MAX_TEMPLATE_CHARS}")
        tree = self.parse(source)
        _guard(tree)
        tree.set_environment(self)
        code = self.compile(tree, name="chat_template", filename="<chat_template>")
        return self.template_class.from_code(self, code, dict(self.make_globals(None)))

    def render(
        self, template: jinja2.Template, variables: Mapping[str, Any], *, timeout_s: float, max_chars: int
    ) -> str:
        """The text. Raises: TemplateLimit, TemplateError, and whatever else the template's code raises."""
        _limits.deadline, _limits.max_chars, _limits.ticks = time.monotonic() + timeout_s, max_chars, 0
        try:
            pieces, length = [], 0
            for piece in template.generate(dict(variables)):
                length += len(piece)
                _check_chars(length)
                tick()
                pieces.append(piece)
            return "".join(pieces)
        finally:
            _limits.deadline, _limits.max_chars = float("inf"), 1 << 62

    def call_binop(self, context: Any, operator_: str, left: Any, right: Any) -> Any:
        if operator_ == "+" and left.__class__ is str and right.__class__ is str:  # nearly every one
            _check_chars(len(left) + len(right))
            return left + right
        if operator_ == "**" and isinstance(left, int) and isinstance(right, int) and abs(right) > 64:
            raise TemplateLimit("the chat template raises a number to a power above 64")
        if operator_ == "*":
            for sequence, count in ((left, right), (right, left)):
                if isinstance(sequence, str | list | tuple | bytes) and isinstance(count, int):
                    _check_chars(len(sequence) * max(0, count))
        if operator_ == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            _check_chars(len(left) + len(right))
        if operator_ == "%" and isinstance(left, str):
            _check_size(right)
            if _WIDE_FORMAT.search(left):
                raise TemplateLimit("the chat template pads text to a width above 9999")
        return super().call_binop(context, operator_, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  # Jinja's own signature
        tick()
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox hands out str.format inside a wrapper
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str) and getattr(method, "__name__", "") in _GROWING_METHODS:
            args = _checked_growth(owner, method.__name__, args)
        return super().call(__context, __obj, *args, **kwargs)


class _GenerationTag(Extension):
    """`{% generation %}`: marks an assistant's words for training; here it prints what it holds."""

    tags = {"generation"}  # noqa: RUF012  # Jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _guard(tree: nodes.Template) -> None:
    """Puts check points into loops and macros and the bounded `~` in place of Jinja's."""
    bodies: list[Any] = [node for kind in (nodes.For, nodes.Macro, nodes.CallBlock) for node in tree.find_all(kind)]
    for loop in bodies:
        loop.body.insert(0, nodes.ExprStmt(_call("tick", []), lineno=loop.lineno))
    _replace_concats(tree)


def _replace_concats(node: nodes.Node) -> None:
    for field, value in node.iter_fields():
        if isinstance(value, nodes.Node):
            _replace_concats(value)
            if isinstance(value, nodes.Concat):
                setattr(node, field, _call("concat", value.nodes))
        elif isinstance(value, list):
            for i, item in enumerate(value):
                if isinstance(item, nodes.Node):
                    _replace_concats(item)
                    if isinstance(item, nodes.Concat):
                        value[i] = _call("concat", item.nodes)


def _call(function: str, args: list[nodes.Expr]) -> nodes.Call:
    # An imported name cannot be shadowed by a variable of the template or of the caller.
    return nodes.Call(nodes.ImportedName(f"engine.template_sandbox.{function}"), args, [], None, None)


def _checked_growth(owner: str, method: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a string method that can make long strings, an iterator among them read into a list."""
    if method == "join" and args and isinstance(args[0], Iterable) and not isinstance(args[0], str | Mapping):
        args = (list(args[0]), *args[1:])
        _check_chars(len(args[0]) * len(owner))
    _check_size(args)
    if method == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        _check_chars(len(owner) + (owner.count(args[0]) if args[0] else len(owner) + 1) * len(args[1]))
    elif method in ("format", "format_map") and _WIDE_FORMAT.search(owner):
        raise TemplateLimit("the chat template pads text to a width above 9999")
    elif method != "replace":
        for width in args:
            if isinstance(width, int):
                _check_chars(width * (len(owner) if method == "expandtabs" else 1))
    return args


def _raise_exception(message: str) -> None:
    raise TemplateError(str(message))


def _midnight(now: datetime) -> datetime:
    return now.replace(hour=0, minute=0, second=0, microsecond=0)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers': no HTML escapes, letters as they are."""
    if isinstance(indent, int) and indent > 16:
        raise TemplateLimit(f"the chat template indents JSON by {indent}, more than 16")
    _check_size(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _replace(value: Any, old: str, new: str, count: int | None = None) -> str:
    _check_size(value)
    text, old, new = str(value), str(old), str(new)
    _check_chars(len(text) + text.count(old) * len(new))
    return text.replace(old, new, -1 if count is None else count)


@jinja2.pass_environment
def _join(environment: jinja2.Environment, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
    items = list(value)
    if attribute is not None:
        items = [environment.getitem(item, attribute) for item in items]
    _check_size(items)
    _check_chars(len(items) * len(str(d)))
    return str(d).join(str(item) for item in items)


def _indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    _check_size(value)
    text = str(value)
    pad = width if isinstance(width, str) else " " * min(int(width), 64)
    _check_chars(len(text) + (text.count("\n") + 1) * len(pad))
    lines = text.split("\n")
    padded = [pad + line if line or blank else line for line in lines[1:]]
    return "\n".join([pad + lines[0] if first else lines[0], *padded])

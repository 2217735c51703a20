"""From a request's tools and response format to what the engine and the answer's reader need: one `OutputPlan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from engine.types import SamplingParams
from gateway.calls import OutputParser
from gateway.errors import InvalidRequest
from gateway.reasoning import OPEN
from gateway.schemas.chat import ChatRequest
from gateway.structured import SchemaRefused, answer_rule, compile_grammar, prepared, response_grammar
from gateway.tools.choice import Mode, ToolPolicy, tool_policy
from gateway.tools.format import ToolFormat, ToolSpec
from gateway.tools.parser import ToolOutputParser


class OutputPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`grammar` for the engine, None for free text. `new_parser` makes one parser a choice, None passes text through.

    `free_start`: the grammar leaves the answer free until a call begins.
    `keep_special` keeps control tokens in the text, because the format's markers are some. `stop` ends the answer
    behind its only call.
    """

    policy: ToolPolicy | None = None
    grammar: str | None = None
    free_start: bool = False
    new_parser: Callable[[], OutputParser] | None = None
    keep_special: bool = False
    stop: tuple[str, ...] = ()

    def apply(self, sampling: SamplingParams) -> SamplingParams:
        """The sampling parameters with what reading calls needs."""
        changes: dict[str, object] = {}
        if self.keep_special:
            changes["skip_special_tokens"] = False
        if self.stop:
            changes["stop"] = (*sampling.stop, *self.stop)
        return msgspec.structs.replace(sampling, **changes) if changes else sampling


def plan_output(request: ChatRequest, format_: ToolFormat, special_ids: Mapping[str, int]) -> OutputPlan:
    """Checks and compiles everything about the form of the answer.

    Args: special_ids maps the spellings of the model's control tokens to their ids.
    Raises: InvalidRequest (`tools`, `tool_choice` or `response_format`).
    """
    policy = tool_policy(request)
    if policy is None:
        return OutputPlan(grammar=response_grammar(request.response_format))
    answer = None if policy.forced else answer_rule(request.response_format)
    free_start = not policy.forced and answer is None

    def new_parser() -> OutputParser:
        return ToolOutputParser(format_, policy)

    return OutputPlan(
        policy=policy,
        grammar=_strict_calls(request, policy, format_, special_ids)
        if free_start
        else _grammar(request, policy, format_, special_ids, answer),
        free_start=free_start,
        new_parser=new_parser,
        keep_special=any(marker in special_ids for marker in format_.markers),
        stop=(format_.end_marker,) if policy.max_calls == 1 and not policy.forced and format_.end_marker else (),
    )


def _grammar(
    request: ChatRequest,
    policy: ToolPolicy,
    format_: ToolFormat,
    special_ids: Mapping[str, int],
    answer: str | None,
) -> str:
    """Forced calls, or an answer in a given form with calls as the alternative."""
    parallel = policy.parallel and policy.mode is not Mode.NAMED
    rules = format_.calls_rule(_bounded(request, policy), special_ids, parallel=parallel)
    start = "start: calls" if answer is None else "start: answer | calls"
    return _compiled("\n".join((start, rules, answer or "")))


def _compiled(rules: str) -> str:
    try:
        return compile_grammar(rules)
    except SchemaRefused as exc:
        raise InvalidRequest(f"Invalid schema in 'tools': {exc}.", param="tools") from exc


def _strict_calls(
    request: ChatRequest, policy: ToolPolicy, format_: ToolFormat, special_ids: Mapping[str, int]
) -> str | None:
    """Free text in which the calls of `strict` functions are held to their schemas; None where none is strict.

    A model whose thinking is bracketed by control tokens could not write them in text that a grammar describes.
    """
    strict = frozenset(tool.function.name for tool in policy.tools if tool.function.strict)
    if not strict & policy.names or OPEN in special_ids:
        return None
    rules = format_.auto_rule(_bounded(request, policy, strict), special_ids, parallel=policy.parallel)
    return _compiled(rules) if rules is not None else None


def _bounded(request: ChatRequest, policy: ToolPolicy, held: frozenset[str] | None = None) -> list[ToolSpec]:
    """The callable functions with schemas the grammar takes; those not in `held` take any object.

    Raises: InvalidRequest naming the function.
    """
    numbers = {tool.function.name: number for number, tool in enumerate(request.tools or ())}
    specs = []
    for spec in policy.callable:
        if held is not None and spec.name not in held:
            specs.append(ToolSpec(name=spec.name, parameters={"type": "object"}))
            continue
        try:
            schema = prepared(spec.parameters)
            compile_grammar(f"start: %json {msgspec.json.encode(schema).decode()}")
        except SchemaRefused as exc:
            raise InvalidRequest(
                f"Invalid schema for function '{spec.name}': {exc}.",
                param=f"tools[{numbers[spec.name]}].function.parameters",
                code="invalid_function_parameters",
            ) from exc
        specs.append(ToolSpec(name=spec.name, parameters=schema))
    return specs

"""From a request's tools and response format to what the engine and the answer's reader need: one `OutputPlan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from engine.types import SamplingParams
from gateway.calls import OutputParser
from gateway.errors import InvalidRequest
from gateway.schemas.chat import ChatRequest
from gateway.structured import SchemaRefused, answer_rule, compile_grammar, prepared, response_grammar
from gateway.tools.choice import Mode, ToolPolicy, tool_policy
from gateway.tools.format import ToolFormat, ToolSpec
from gateway.tools.parser import ToolOutputParser


class OutputPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`grammar` for the engine, None for free text. `new_parser` makes one parser a choice, None passes text through.

    `keep_special` keeps control tokens in the text, because the format's markers are some. `stop` ends the answer
    behind its only call.
    """

    policy: ToolPolicy | None = None
    grammar: str | None = None
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

    def new_parser() -> OutputParser:
        return ToolOutputParser(format_, policy)

    return OutputPlan(
        policy=policy,
        grammar=_grammar(request, policy, format_, special_ids, answer),
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
) -> str | None:
    """Forced calls, or an answer in a given form with calls as the alternative; free text needs none."""
    if not policy.forced and answer is None:
        return None
    parallel = policy.parallel and policy.mode is not Mode.NAMED
    rules = format_.calls_rule(_bounded(request, policy), special_ids, parallel=parallel)
    start = "start: calls" if answer is None else "start: answer | calls"
    try:
        return compile_grammar("\n".join((start, rules, answer or "")))
    except SchemaRefused as exc:
        raise InvalidRequest(f"Invalid schema in 'tools': {exc}.", param="tools") from exc


def _bounded(request: ChatRequest, policy: ToolPolicy) -> list[ToolSpec]:
    """The callable functions with schemas the grammar takes. Raises: InvalidRequest naming the function."""
    numbers = {tool.function.name: number for number, tool in enumerate(request.tools or ())}
    specs = []
    for spec in policy.callable:
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

"""`tools`, `tool_choice` and `parallel_tool_calls` of a request: checked, and boiled down to one `ToolPolicy`."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from gateway.errors import InvalidRequest, clip
from gateway.schemas.chat import ChatRequest, Tool, ToolChoice
from gateway.tools.format import ToolSpec

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class Mode(StrEnum):
    """`AUTO`: the model decides. `REQUIRED`: at least one call. `NAMED`: exactly this call."""

    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"


class ToolPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What calls an answer may hold. `callable` is what may be called; the model is told of all `tools`."""

    mode: Mode
    tools: tuple[Tool, ...]
    callable: tuple[ToolSpec, ...]
    parallel: bool = True

    @property
    def names(self) -> frozenset[str]:
        return frozenset(spec.name for spec in self.callable)

    @property
    def forced(self) -> bool:
        """The answer is nothing but calls."""
        return self.mode is not Mode.AUTO

    @property
    def max_calls(self) -> int | None:
        """1 for a named function and without parallel calls."""
        return 1 if self.mode is Mode.NAMED or not self.parallel else None


def tool_policy(request: ChatRequest) -> ToolPolicy | None:
    """The request's policy; None when no call may be made (no tools, or `tool_choice` none).

    Raises: InvalidRequest naming the tool or the choice.
    """
    tools, choice = tuple(request.tools or ()), request.tool_choice
    if not tools:
        if choice is None or choice in ("none", "auto"):
            return None
        raise InvalidRequest(
            "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.",
            param="tool_choice",
        )
    specs = _specs(tools)
    if choice == "none":
        return None
    mode, names = _chosen(choice, specs)
    return ToolPolicy(
        mode=mode,
        tools=tools,
        callable=tuple(spec for name, spec in specs.items() if name in names),
        parallel=request.parallel_tool_calls is not False,
    )


def _specs(tools: tuple[Tool, ...]) -> dict[str, ToolSpec]:
    specs: dict[str, ToolSpec] = {}
    for number, tool in enumerate(tools):
        name = tool.function.name
        if name in specs:
            raise InvalidRequest(
                f"Invalid 'tools[{number}].function.name': the function '{name}' is defined twice.",
                param=f"tools[{number}].function.name",
                code="invalid_value",
            )
        specs[name] = ToolSpec(name=name, parameters=_parameters(tool, number))
    return specs


def _parameters(tool: Tool, number: int) -> dict[str, Any]:
    """A schema of an object; a function without parameters takes an empty one."""
    schema = tool.function.parameters
    if not schema:
        return NO_PARAMETERS
    kind = schema.get("type", "object")
    if kind != "object":
        raise InvalidRequest(
            f"Invalid schema for function '{tool.function.name}': schema must be a JSON Schema of 'type: \"object\"', "
            f"got 'type: \"{clip(str(kind), 40)}\"'.",
            param=f"tools[{number}].function.parameters",
            code="invalid_function_parameters",
        )
    return schema if "type" in schema else {"type": "object", **schema}


def _chosen(choice: str | ToolChoice | None, specs: dict[str, ToolSpec]) -> tuple[Mode, set[str]]:
    if choice is None or choice == "auto":
        return Mode.AUTO, set(specs)
    if choice == "required":
        return Mode.REQUIRED, set(specs)
    assert isinstance(choice, ToolChoice)  # the decoder takes no other word
    if choice.type == "function":
        if choice.function is None:
            raise _missing("tool_choice.function")
        return Mode.NAMED, {_known(choice.function.name, specs)}
    if choice.allowed_tools is None:
        raise _missing("tool_choice.allowed_tools")
    names = {_known(tool.function.name, specs) for tool in choice.allowed_tools.tools}
    return Mode(choice.allowed_tools.mode), names


def _known(name: str, specs: dict[str, ToolSpec]) -> str:
    if name in specs:
        return name
    raise InvalidRequest(
        f"Invalid value for 'tool_choice': no function named '{clip(name, 64)}' was specified in the 'tools' "
        "parameter.",
        param="tool_choice",
    )


def _missing(name: str) -> InvalidRequest:
    return InvalidRequest(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")

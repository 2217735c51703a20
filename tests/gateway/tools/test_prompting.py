"""Tools for templates that know none."""

from __future__ import annotations

from gateway.tools.prompting import explain_tools, flatten_calls

TOOL = {"type": "function", "function": {"name": "ping", "description": "", "parameters": {}}}


def test_the_tools_stand_in_the_system_message_behind_its_own_words() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]

    system, user = explain_tools(messages, [TOOL])

    assert system["content"].startswith("Be brief.\n\nYou may call")
    assert '"name": "ping"' in system["content"]
    assert '{"name": <function-name>, "arguments": <arguments-object>}' in system["content"]
    assert user == messages[1]
    assert messages[0]["content"] == "Be brief."


def test_a_system_message_is_made_where_there_is_none() -> None:
    assert [m["role"] for m in explain_tools([{"role": "user", "content": "hi"}], [TOOL])] == ["system", "user"]


def test_calls_and_results_of_earlier_turns_become_text() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "ping", "arguments": {"a": 1}}}
    messages = [
        {"role": "user", "content": "ping it"},
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "1", "content": "pong"},
        {"role": "tool", "tool_call_id": "2", "content": "pong 2"},
        {"role": "assistant", "content": "done"},
    ]

    flat = flatten_calls(messages)

    body = '<tool_call>\n{"name": "ping", "arguments": {"a": 1}}\n</tool_call>'
    assert flat == [
        messages[0],
        {"role": "assistant", "content": f"{body}\n{body}"},
        {
            "role": "user",
            "content": "<tool_response>\npong\n</tool_response>\n<tool_response>\npong 2\n</tool_response>",
        },
        messages[4],
    ]

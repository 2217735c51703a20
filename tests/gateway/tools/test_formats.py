"""Every format's parser: what is a call, what is content, and that the split of the text never matters."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tools.registry import FORMATS
from gateway.tools.sink import CallSink
from tests.gateway.tools.reading import Call, read

TWO_CALLS = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"a": [1, "}"], "b": "\\""}}\n</tool_call>\n'
    '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>',
    "qwen_xml": '<tool_call>\n<function=f>\n<parameter=a>\n[1, "}"]\n</parameter>\n<parameter=b>\n"\n</parameter>\n'
    "</function>\n</tool_call>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>",
    "llama3": '{"name": "f", "parameters": {"a": [1, "}"], "b": "\\""}}; {"name": "ping", "parameters": {}}',
    "mistral": '[TOOL_CALLS] [{"name": "f", "arguments": {"a": [1, "}"], "b": "\\""}}, '
    '{"name": "ping", "arguments": {}}]',
    "mistral_args": '[TOOL_CALLS]f[ARGS]{"a": [1, "}"], "b": "\\""}[TOOL_CALLS]ping[CALL_ID]abcDEF123[ARGS]{}',
    "gemma4": '<|tool_call>call:f{a:[1,<|"|>}<|"|>],b:<|"|>"<|"|>}<tool_call|><|tool_call>call:ping{}<tool_call|>',
    "functiongemma": '<start_function_call>call:f{a:[1,<escape>}<escape>],b:<escape>"<escape>}<end_function_call>'
    "<start_function_call>call:ping{}<end_function_call>",
}
WITH_CONTENT = {
    "hermes": 'Let me look.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
    "qwen_xml": "Let me look.\n<tool_call>\n<function=f>\n</function>\n</tool_call>",
    "llama3": 'Let me look.\n<|python_tag|>{"name": "f", "parameters": {}}',
    "mistral": 'Let me look.\n[TOOL_CALLS][{"name": "f", "arguments": {}}]',
    "mistral_args": "Let me look.\n[TOOL_CALLS]f[ARGS]{}",
    "gemma4": "Let me look.\n<|tool_call>call:f{}<tool_call|>",
    "functiongemma": "Let me look.\n<start_function_call>call:f{}<end_function_call>",
}
NO_CALLS = {
    "hermes": [
        "a < b, <tool> and <tool_cal",
        "<tool_call>not json</tool_call>",
        '<tool_call>{"name": "unknown_function", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "[1]"}</tool_call>',
    ],
    "qwen_xml": ["<tool_call><function=unknown></function></tool_call>", "<tool_call>no", "<tool_call><functional"],
    "llama3": ['{"answer": 5}', '{"name": "Bob", "age": 3}', 'so: {"name": "f", "parameters": {}}', "{"],
    "mistral": ["[TOOL_CALLS]who[ARGS]{}", "[TOOL_C", "[TOOL_CALLS] [1, 2]"],
    "mistral_args": ["[TOOL_CALLS]f[ARG", "[TOOL_CALLS]f(1)"],
    "gemma4": ["<|tool_call>call:unknown{}<tool_call|>", "<|tool_call>f{}", "<|too", "<tool_call|>"],
    "functiongemma": ["<start_function_call>run f", "<start_function"],
}
FORMAT_NAMES = sorted(TWO_CALLS)


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_two_calls_are_read_with_their_arguments(name: str) -> None:
    text, calls = read(name, [TWO_CALLS[name]])

    assert text == ""
    assert [call.name for call in calls] == ["f", "ping"]
    assert json.loads(calls[0].arguments) == {"a": [1, "}"], "b": '"'}
    assert calls[1].arguments == "{}"
    assert calls[0].id != calls[1].id


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_words_before_a_call_are_content_without_the_space_between(name: str) -> None:
    text, calls = read(name, [WITH_CONTENT[name]])

    assert text == "Let me look."
    assert [(call.name, call.arguments) for call in calls] == [("f", "{}")]


@pytest.mark.parametrize(("name", "text"), [(name, text) for name in FORMAT_NAMES for text in NO_CALLS[name]])
def test_what_is_no_call_is_content_to_the_last_character(name: str, text: str) -> None:
    assert read(name, [text]) == (text, [])
    assert read(name, text) == (text, [])


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_every_split_in_two_gives_the_same_result(name: str) -> None:
    for recorded in (TWO_CALLS[name], WITH_CONTENT[name], *NO_CALLS[name], TWO_CALLS[name] + "\n\n"):
        whole = read(name, [recorded])
        assert read(name, recorded) == whole, "one character at a time"
        for cut in range(len(recorded)):
            assert read(name, [recorded[:cut], recorded[cut:]]) == whole, f"cut at {cut}"


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_an_answer_cut_off_anywhere_reads_the_same_at_every_split(name: str) -> None:
    recorded = WITH_CONTENT[name].replace("{}", '{"a": "b"}') if name != "gemma4" else TWO_CALLS[name]
    for end in range(len(recorded)):
        cut = recorded[:end]
        assert read(name, cut) == read(name, [cut]), f"cut off at {end}"


# Pieces that formats are made of, in any order: parsers meet far worse than what models were taught.
_FRAGMENTS = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            "<function=f>",
            "</function>",
            "<parameter=b>",
            "</parameter>",
            "<|python_tag|>",
            "[TOOL_CALLS]",
            "[ARGS]",
            "[CALL_ID]",
            "<|tool_call>",
        ),
        *("<tool_call|>", '<|"|>', "<start_function_call>", "<end_function_call>", "<escape>", "call:", "f", "ping"),
        *(
            "{",
            "}",
            "[",
            "]",
            '"',
            ":",
            ",",
            ";",
            "\\",
            " ",
            "\n",
            "1",
            "null",
            '"name"',
            '"arguments"',
            '"parameters"',
        ),
        *('{"name": "f", "arguments": {"a": 1}}', '{"name": "ping"}', '"f"', "ä", "😀", "<", "tool", " " * 70),
    ]
)


@pytest.mark.parametrize("name", FORMAT_NAMES)
@settings(max_examples=150, deadline=None)
@given(fragments=st.lists(_FRAGMENTS, max_size=14), data=st.data())
def test_any_text_reads_the_same_at_every_split(name: str, fragments: list[str], data: st.DataObject) -> None:
    text = "".join(fragments)
    whole = read(name, [text])

    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    assert read(name, chunks) == whole
    assert read(name, text) == whole


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_content_is_held_back_only_while_it_could_be_a_marker(name: str) -> None:
    sink_text = ""
    chunks = ["The", " quick", " <br>", " [x]", " fox"]
    seen = []
    sink = CallSink()
    parser = FORMATS[name].parser(sink, {"f": {}})
    for chunk in chunks:
        parser.feed(chunk)
        sink_text += sink.take()[0]
        seen.append(sink_text)

    assert seen == ["The", "The quick", "The quick <br>", "The quick <br> [x]", "The quick <br> [x] fox"]


def test_arguments_stream_while_the_call_is_still_being_written() -> None:
    sink = CallSink()
    parser = FORMATS["hermes"].parser(sink, {"f": {}})
    parser.feed('<tool_call>\n{"name": "f", "arguments": {"city": "Par')
    _, pieces = sink.take()

    assert [(piece.name, piece.arguments) for piece in pieces] == [("f", '{"city": "Par')]


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"arguments": {"x": 1}, "name": "f"}', '{"x": 1}'),
        ('{"name": "f", "arguments": "{\\"x\\": 1}"}', '{"x": 1}'),
        ('{"name": "f", "arguments": ""}', "{}"),
        ('{"name": "f", "arguments": null}', "{}"),
        ('{"name": "f"}', "{}"),
        ('{"id": "1", "type": "function", "name": "f", "parameters": {"x": 1}}', '{"x": 1}'),
    ],
)
def test_models_habits_of_writing_a_call_are_understood(body: str, arguments: str) -> None:
    assert read("hermes", [f"<tool_call>{body}</tool_call>"]) == ("", [Call("call_0", "f", arguments)])


def test_calls_after_the_only_one_allowed_are_dropped_with_what_follows() -> None:
    text, calls = read("hermes", [TWO_CALLS["hermes"] + " and more"], max_calls=1)

    assert (text, [call.name for call in calls]) == ("", ["f"])


def test_a_list_in_one_pair_of_tags_is_taken_as_calls() -> None:
    text, calls = read("hermes", ['<tool_call>[{"name": "f", "arguments": {}}, {"name": "ping"}]</tool_call>'])

    assert (text, [call.name for call in calls]) == ("", ["f", "ping"])


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{n:3,f:1.5,t:true,z:null}", {"n": 3, "f": 1.5, "t": True, "z": None}),
        ('{o:{k:[<|"|>a<|"|>,{}]}}', {"o": {"k": ["a", {}]}}),
        ('{s:<|"|>line\n"quoted" \\ {x}<|"|>}', {"s": 'line\n"quoted" \\ {x}'}),
        ("{w:bare word}", {"w": "bare word"}),
        ('{"a": "x\\"y", "b": [1]}', {"a": 'x"y', "b": [1]}),
        ('{<|"|>odd key<|"|>:1,}', {"odd key": 1}),
    ],
)
def test_gemma_arguments_become_json(written: str, expected: dict[str, object]) -> None:
    _, [call] = read("gemma4", [f"<|tool_call>call:f{written}<tool_call|>"])

    assert json.loads(call.arguments) == expected


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("b", "12", "12"),
        ("b", 'two\nlines \\ "quoted"', 'two\nlines \\ "quoted"'),
        ("n", "12", 12),
        ("n", "a dozen", "a dozen"),
        ("z", "True", True),
        ("z", '{"k": [1]}', {"k": [1]}),
        ("z", "bare", "bare"),
    ],
)
def test_a_bare_value_becomes_what_the_schema_says(key: str, written: str, value: object) -> None:
    text = f"<tool_call>\n<function=f>\n<parameter={key}>\n{written}\n</parameter>\n</function>\n</tool_call>"

    [call] = read("qwen_xml", [text])[1]

    assert json.loads(call.arguments) == {key: value}


def test_a_text_argument_of_qwens_tags_streams_while_it_is_being_written() -> None:
    sink = CallSink()
    parser = FORMATS["qwen_xml"].parser(sink, {"f": {"properties": {"b": {"type": "string"}}}})
    seen = []
    for chunk in ("<tool_call>\n<function=f>\n<parameter=b>\nOne ", 'say "hi"\n', "</param> two", "\n</parameter>"):
        parser.feed(chunk)
        seen.append("".join(piece.arguments for piece in sink.take()[1]))

    assert seen == ['{"b": "One ', 'say \\"hi\\"', "\\n</param> two", '"']


@pytest.mark.parametrize("value", ["", "\n", "\n\n", "a\n", "\n a", "</parameter", 'q"\\\n</param\n', "🫠"])
def test_a_text_argument_is_the_same_at_every_split(value: str) -> None:
    text = f"<tool_call>\n<function=f>\n<parameter=b>\n{value}\n</parameter>\n</function>\n</tool_call>"

    [whole] = read("qwen_xml", [text])[1]

    assert json.loads(whole.arguments) == {"b": value}
    assert read("qwen_xml", text)[1] == [whole]
    for cut in range(len(text)):
        assert read("qwen_xml", [text[:cut], text[cut:]])[1] == [whole], cut

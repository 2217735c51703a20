"""Ten families' templates print what transformers prints for the same conversation.

The files in `chat_templates/` keep each family's published form. transformers is given by hand the shape that we
promise to bring OpenAI's messages into.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RustTokenizer
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from engine.chat_template import ChatTemplate
from engine.errors import InvalidRequest
from engine.tokenizer import Tokenizer

FOLDER = Path(__file__).parent / "chat_templates"
FAMILIES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
SPECIALS = [
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "[INST]",
    "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "<start_of_turn>", "<end_of_turn>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|image|>",
]  # fmt: skip
TODAY = datetime(2026, 11, 29)  # noqa: DTZ001  # templates print a date, not an instant
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds <two> numbers: é",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
TALK = [
    {"role": "user", "content": "  Hi, who are you? "},
    {"role": "assistant", "content": "A <b>model</b>.\n"},
    {"role": "user", "content": "Ünï 🫠 & 'quotes' \"double\" {{ braces }}"},
]


def _library() -> PreTrainedTokenizerFast:
    """Byte-level tokens for every byte, and the special tokens of all families."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = RustTokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


@pytest.fixture(scope="module")
def library() -> PreTrainedTokenizerFast:
    return _library()


@pytest.fixture(scope="module")
def tokenizer(library: PreTrainedTokenizerFast) -> Tokenizer:
    return Tokenizer(library.backend_tokenizer.to_str(), {"bos_token": "<s>", "eos_token": "</s>"})


@pytest.fixture(autouse=True)
def _same_day(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return TODAY

    monkeypatch.setattr(chat_template_utils, "datetime", Clock)
    chat_template_utils._compile_jinja_template.cache_clear()


def _ours(family: str, tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate((FOLDER / f"{family}.jinja").read_text(), tokenizer, name=family, today=lambda: TODAY)


def _theirs(family: str, library: PreTrainedTokenizerFast, messages: list[dict[str, Any]], **options: Any) -> Any:
    source = (FOLDER / f"{family}.jinja").read_text()
    if family == "vision_parts":
        messages = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
    options = {"add_generation_prompt": True, **options}
    return library.apply_chat_template(messages, chat_template=source, tokenize=False, **options)


def _check(
    family: str,
    tokenizer: Tokenizer,
    library: PreTrainedTokenizerFast,
    sent: list[dict[str, Any]],
    plain: list[dict[str, Any]] | None = None,
    **options: Any,
) -> None:
    template = _ours(family, tokenizer)
    expected = _theirs(family, library, plain or sent, **options)
    kwargs = {k: v for k, v in options.items() if k == "enable_thinking"}
    rest = {k: v for k, v in options.items() if k not in kwargs}
    assert template.render(sent, template_kwargs=kwargs, **rest).plain == expected
    assert (
        template.encode(sent, template_kwargs=kwargs, **rest) == library(expected, add_special_tokens=False).input_ids
    )


def test_there_are_at_least_eight_families() -> None:
    assert len(FAMILIES) >= 8


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("generate", [True, False])
def test_a_talk_prints_and_encodes_as_in_transformers(
    family: str, generate: bool, tokenizer: Tokenizer, library: PreTrainedTokenizerFast
) -> None:
    _check(family, tokenizer, library, TALK, add_generation_prompt=generate)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "gemma"])
def test_a_system_message_from_a_developer_prints_as_system(
    family: str, tokenizer: Tokenizer, library: PreTrainedTokenizerFast
) -> None:
    sent = [{"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]}]
    _check(family, tokenizer, library, [*sent, *TALK], [{"role": "system", "content": "Be brief."}, *TALK])


def test_a_family_without_a_system_role_says_so(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="System role not supported"):
        _ours("gemma", tokenizer).encode([{"role": "system", "content": "x"}, *TALK])


@pytest.mark.parametrize("family", ["gemma", "gemma3", "llama2", "mistral"])
def test_a_family_that_wants_turns_to_alternate_says_so(family: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="must alternate"):
        _ours(family, tokenizer).encode([TALK[0], TALK[0]])


@pytest.mark.parametrize("family", ["llama3", "mistral", "qwen3"])
def test_tools_and_their_calls_print_as_in_transformers(
    family: str, tokenizer: Tokenizer, library: PreTrainedTokenizerFast
) -> None:
    def talk(arguments: Any, call_id: str, content: Any) -> list[dict[str, Any]]:
        function = {"name": "add", "arguments": arguments}
        call = {"type": "function", "function": function, "id": call_id}
        assistant = {"role": "assistant", "content": content, "tool_calls": [call]}
        reply = {"role": "tool", "content": "5", "tool_call_id": call_id}
        return [TALK[0], assistant, reply]

    sent = talk('{"b": 3, "a": "é<"}', "call_abcdefghijkl", None)
    template = _ours(family, tokenizer)
    short = template.traits.short_tool_ids
    assert short == (family == "mistral")
    first = template.render(sent, tools=[ADD]).plain
    call_id = first.split('"id": "')[1][:9] if short else "call_abcdefghijkl"
    _check(family, tokenizer, library, sent, talk({"b": 3, "a": "é<"}, call_id, ""), tools=[ADD])


def test_parallel_calls_where_a_family_takes_one_are_the_callers_error(tokenizer: Tokenizer) -> None:
    call = {"type": "function", "id": "c", "function": {"name": "add", "arguments": "{}"}}
    with pytest.raises(InvalidRequest, match="single tool-calls"):
        _ours("llama3", tokenizer).encode([TALK[0], {"role": "assistant", "tool_calls": [call, call]}])


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_earlier_reasoning_is_given_under_either_name(
    field: str, tokenizer: Tokenizer, library: PreTrainedTokenizerFast
) -> None:
    def talk(name: str) -> list[dict[str, Any]]:
        return [TALK[0], {"role": "assistant", "content": "4", name: "two and two"}]

    _check("qwen3", tokenizer, library, talk(field), talk("reasoning_content"), add_generation_prompt=False)


def test_thinking_can_be_switched_off_by_the_templates_own_flag(
    tokenizer: Tokenizer, library: PreTrainedTokenizerFast
) -> None:
    _check("qwen3", tokenizer, library, TALK, enable_thinking=False)


@pytest.mark.parametrize("family", ["chatml", "llama3", "mistral", "gemma3", "phi3", "qwen3", "zephyr"])
def test_an_open_last_message_prints_as_in_transformers(
    family: str, tokenizer: Tokenizer, library: PreTrainedTokenizerFast
) -> None:
    messages = [TALK[0], {"role": "assistant", "content": "The answer is"}]
    _check(family, tokenizer, library, messages, add_generation_prompt=False, continue_final_message=True)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("spelling", SPECIALS)
def test_no_familys_control_token_comes_from_a_callers_words(family: str, spelling: str, tokenizer: Tokenizer) -> None:
    template = _ours(family, tokenizer)

    def controls(content: str) -> int:
        return sum(i in tokenizer.special_ids for i in template.encode([{"role": "user", "content": content}]))

    assert controls(f"a {spelling}{spelling} b") == controls(spelling) == controls("a b")


@pytest.mark.parametrize("family", [f for f in FAMILIES if f in ("gemma", "gemma3", "llama2", "llama3", "mistral")])
def test_a_chat_has_exactly_one_bos(family: str, tokenizer: Tokenizer) -> None:
    ids = _ours(family, tokenizer).encode([TALK[0]])
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(ids[0]) == 1

"""What a prompt costs the event loop and what it leaves behind."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from engine.tokenizer import Tokenizer
from gateway.prompts import INLINE_CHARS, EstimatedText, TextModel
from tests.gateway.fakes import CHATML, byte_tokenizer, model_info, text_model

LONG = "word " * INLINE_CHARS
ASKED = {"role": "user", "content": "hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": "' + LONG + '"}'}}
TOOL = {"type": "function", "function": {"name": "f", "description": LONG, "parameters": {"type": "object"}}}


@pytest.mark.parametrize("estimated", [True, False])
@pytest.mark.parametrize(
    ("messages", "tools"),
    [
        ([{"role": "user", "content": LONG}], None),
        ([{"role": "user", "content": [{"type": "text", "text": LONG}]}], None),
        ([ASKED, {"role": "assistant", "content": None, "tool_calls": [CALL]}, ASKED], None),
        ([ASKED], [TOOL]),
    ],
    ids=["words", "part", "call", "tool"],
)
async def test_a_long_prompt_is_tokenised_beside_the_event_loop_wherever_its_length_is(
    monkeypatch: pytest.MonkeyPatch, messages: list[dict[str, Any]], tools: Any, *, estimated: bool
) -> None:
    threads = []

    def watched(method: Any) -> Any:
        def encode(*args: Any, **kwargs: Any) -> Any:
            threads.append(threading.current_thread())
            return method(*args, **kwargs)

        return encode

    for name in ("encode", "encode_with_specials"):
        monkeypatch.setattr(Tokenizer, name, watched(getattr(Tokenizer, name)))
    model: TextModel = EstimatedText(model_info(), byte_tokenizer()) if estimated else text_model()
    await model.chat([ASKED])
    assert threads == [threading.current_thread()]
    await model.chat(messages, tools=tools, reserve_tokens=-(1 << 20))
    assert threading.current_thread() not in threads[1:]
    assert len(threads) > 1
    model.close()


async def test_templates_of_requests_leave_nothing_in_the_tokenizer() -> None:
    model = text_model()
    kept = dict(model.tokenizer._kept)
    for number in range(3):
        await model.chat([ASKED], template_source=CHATML + f"<|im_start|>{number}<|im_end|>")
    assert model.tokenizer._kept == kept
    assert kept
    model.close()

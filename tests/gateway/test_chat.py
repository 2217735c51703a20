"""POST /v1/chat/completions, whole and streamed, over a scripted engine."""

from __future__ import annotations

from tests.gateway.conftest import Gateway, frames


async def test_a_plain_chat_answers_in_openais_shape(gateway: Gateway) -> None:
    response = await gateway.chat("hi")

    assert response.status_code == 200, response.text
    body = response.json()
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello world", "refusal": None, "annotations": []},
            "finish_reason": "stop",
            "logprobs": None,
        }
    ]
    assert body["usage"]["completion_tokens"] == 2
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_streamed_chat_joins_to_the_plain_answer(gateway: Gateway) -> None:
    response = await gateway.chat("hi", stream=True, stream_options={"include_usage": True})

    chunks = frames(response)
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "Hello world"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 2

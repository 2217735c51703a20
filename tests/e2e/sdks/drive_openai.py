"""Drives a running Weir through whatever openai-python can be imported, and prints what came of it as JSON.

Run as a program, so that an SDK of another age can be put before the installed one on PYTHONPATH. Arguments: base URL,
API key.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import openai
from pydantic import BaseModel

MODEL = "smollm2"
ASK = [{"role": "user", "content": "What is the capital of France?"}]  # no near tie among its best tokens
PING = {"type": "function", "function": {"name": "ping", "description": "Pings."}}


class Answer(BaseModel):
    colour: str
    count: int


def chat(client: Any) -> dict[str, Any]:
    plain = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=12, temperature=0)
    usage, text = None, ""
    chunks = client.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=12, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    for chunk in chunks:
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        usage = chunk.usage or usage
    return {
        "plain": plain.choices[0].message.content,
        "streamed": text,
        "plain_tokens": plain.usage.completion_tokens,
        "streamed_tokens": usage.completion_tokens if usage else None,
        "role": plain.choices[0].message.role,
    }


def helper(client: Any) -> dict[str, Any]:
    api = client.chat.completions if hasattr(client.chat.completions, "stream") else client.beta.chat.completions
    with api.stream(model=MODEL, messages=ASK, max_tokens=300, temperature=0) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    return {"role": final.choices[0].message.role, "text": final.choices[0].message.content}


def parsed(client: Any) -> dict[str, Any]:
    api = client.chat.completions if hasattr(client.chat.completions, "parse") else client.beta.chat.completions
    done = api.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Which colour, and how many?"}],
        response_format=Answer,
        temperature=0,
        max_tokens=200,
    )
    answer = done.choices[0].message.parsed
    return {"colour": type(answer.colour).__name__, "count": type(answer.count).__name__}


def tools(client: Any) -> dict[str, Any]:
    asked = {"model": MODEL, "messages": ASK, "tools": [PING], "tool_choice": "required", "max_tokens": 100}
    plain = client.chat.completions.create(**asked, parallel_tool_calls=False)
    name, arguments, finish = "", "", None
    for chunk in client.chat.completions.create(**asked, parallel_tool_calls=False, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            name += call.function.name or ""
            arguments += call.function.arguments or ""
        finish = chunk.choices[0].finish_reason or finish
    call = plain.choices[0].message.tool_calls[0].function
    return {
        "plain": [call.name, json.loads(call.arguments), plain.choices[0].finish_reason],
        "streamed": [name, json.loads(arguments), finish],
    }


def responses(client: Any) -> dict[str, Any]:
    first = client.responses.create(model=MODEL, input="Say hello.", max_output_tokens=12, temperature=0)
    second = client.responses.create(
        model=MODEL, input="Again.", previous_response_id=first.id, max_output_tokens=12, temperature=0
    )
    with client.responses.stream(model=MODEL, input="Say hello.", temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    kept = client.responses.retrieve(first.id)
    client.responses.delete(first.id)
    try:
        client.responses.retrieve(first.id)
        gone = False
    except openai.NotFoundError:
        gone = True
    return {
        "same": kept.output_text == first.output_text,
        "grown": second.usage.input_tokens > first.usage.input_tokens,
        "first_event": kinds[0],
        "last_event": kinds[-1],
        "final": final.output_text,
        "gone": gone,
    }


def resumed(client: Any) -> dict[str, Any]:
    """A background stream that is lost and taken up again."""
    stream = client.responses.create(
        model=MODEL, input="Say hello.", max_output_tokens=12, temperature=0, background=True, stream=True
    )
    for event in stream:
        if event.type == "response.created":
            made = event.response.id
        if event.type == "response.output_text.delta":
            break
    seen = event.sequence_number
    rest = list(client.responses.retrieve(made, stream=True, starting_after=seen))
    return {
        "gapless": [each.sequence_number for each in rest] == list(range(seen + 1, seen + 1 + len(rest))),
        "same": rest[-1].response.output_text == client.responses.retrieve(made).output_text,
    }


def embeddings(client: Any) -> dict[str, Any]:
    made = client.embeddings.create(model="all-MiniLM-L6-v2", input=["one", "two"])
    return {
        "count": len(made.data),
        "dims": len(made.data[0].embedding),
        "kind": type(made.data[0].embedding[0]).__name__,
    }


def batch(client: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": ASK, "max_tokens": 4, "temperature": 0}
    lines = [{"custom_id": f"q{n}", "method": "POST", "url": "/v1/chat/completions", "body": body} for n in range(3)]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = client.files.create(file=("input.jsonl", content), purpose="batch")
    made = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    for _ in range(300):
        made = client.batches.retrieve(made.id)
        if made.status in ("completed", "failed", "expired", "cancelled"):
            break
        time.sleep(0.2)
    answers = [json.loads(line) for line in client.files.content(made.output_file_id).text.splitlines()]
    return {
        "status": made.status,
        "completed": made.request_counts.completed,
        "ids": sorted(answer["custom_id"] for answer in answers),
    }


def errors(client: Any, base_url: str) -> dict[str, Any]:
    caught: dict[str, Any] = {}
    for name, ask in {
        "model": lambda: client.chat.completions.create(model="no-such", messages=ASK),
        "messages": lambda: client.chat.completions.create(model=MODEL, messages=[]),
        "key": openai.OpenAI(base_url=base_url, api_key="wrong", max_retries=0).models.list,
    }.items():
        try:
            ask()
        except openai.APIStatusError as exc:
            caught[name] = [type(exc).__name__, exc.status_code, exc.code, bool(exc.request_id)]
    return caught


def main(base_url: str, api_key: str) -> None:
    client = openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=2, timeout=120)
    done: dict[str, Any] = {"version": openai.__version__, "models": [model.id for model in client.models.list()]}
    for work in (chat, helper, parsed, tools, responses, resumed, embeddings, batch):
        done[work.__name__] = work(client)
    done["errors"] = errors(client, base_url)
    print(json.dumps(done))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

"""Valid bodies, broken in every way: no 5xx, no hang, always the envelope, and the next plain request works."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.gateway.conftest import Gateway

TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "m",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "12:00"},
        ],
        "tools": [TOOL],
        "tool_choice": "auto",
        "temperature": 0.5,
        "n": 2,
        "stop": ["a"],
        "logit_bias": {"1": 2},
        "seed": 3,
        "max_tokens": 8,
        "logprobs": True,
        "top_logprobs": 2,
        "response_format": {"type": "text"},
        "stream_options": {"include_usage": True},
        "metadata": {"a": "b"},
        "truncation": "auto",
        "chat_template_kwargs": {"x": 1},
    },
    "/v1/completions": {
        "model": "m",
        "prompt": ["once", "twice"],
        "echo": True,
        "logprobs": 1,
        "n": 1,
        "best_of": 2,
        "max_tokens": 4,
        "stop": "x",
        "min_tokens": 1,
        "stop_token_ids": [3],
    },
    "/v1/embeddings": {"model": "all-MiniLM-L6-v2", "input": ["a", "b"], "encoding_format": "float", "dimensions": 8},
    "/v1/responses": {
        "model": "m",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        "instructions": "be brief",
        "tools": [{"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}],
        "max_output_tokens": 8,
        "text": {"format": {"type": "text"}},
        "metadata": {"a": "b"},
        "store": True,
    },
    "/v1/messages": {
        "model": "m",
        "max_tokens": 8,
        "system": "be brief",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "tools": [{"name": "now", "input_schema": {"type": "object", "properties": {}}}],
        "stop_sequences": ["x"],
        "metadata": {"user_id": "u"},
    },
    "/tokenize": {"model": "m", "prompt": "x", "return_token_strs": True},
    "/detokenize": {"model": "m", "tokens": [1, 2]},
}
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 1.0, 1.5, 1e308, -1e308, 2**31, 2**63, 2**64, -(2**63) - 1,
    "", " ", "x" * 5000, "\x00", "\u2028", "𝕏🫠", "١٢", "²", "m", "user",
    [], {}, [[]], [None], [{}], {"a": None}, {"": ""}, {"type": "function"}, ["x"] * 300, [0] * 2000,
    {"x": {"y": {"z": [1]}}},
]  # fmt: skip
RAW_ODD = ['"\\ud800"', "NaN", "-Infinity", "1e999", "[" * 500 + "]" * 500, '{"a":1,"a":2}', "01", "'x'", "\ufeff1"]
PER_ENDPOINT = 60


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a body."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths_in(inner, (*path, key))


def mutant(body: dict[str, Any], rng: random.Random) -> bytes:
    """The body with one to three places replaced, removed, doubled or added to."""
    made = copy.deepcopy(body)
    mark = None
    for _ in range(rng.choice((1, 1, 2, 3))):
        path = rng.choice(list(paths_in(made)))
        parent = made
        for key in path[:-1]:
            parent = parent[key]
        last = path[-1]
        match rng.randrange(6):
            case 0 | 1 | 2:
                parent[last] = copy.deepcopy(rng.choice(ODD))
            case 3:
                del parent[last]
            case 4 if isinstance(parent, list):
                parent.append(copy.deepcopy(rng.choice(ODD)))
            case 4:
                parent[f"unknown{rng.randrange(9)}"] = copy.deepcopy(rng.choice(ODD))
            case _:
                mark = "@@raw@@"
                parent[last] = mark
        if not made:
            break
    text = json.dumps(made)
    if mark is not None:
        text = text.replace(f'"{mark}"', rng.choice(RAW_ODD))
    return text.encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("path", VALID)
async def test_no_mutant_of_a_valid_body_breaks_anything(gateway: Gateway, path: str) -> None:
    rng = random.Random(path)
    assert (await gateway.post(path, VALID[path])).status_code == 200
    statuses: Counter[int] = Counter()
    for _ in range(PER_ENDPOINT):
        body = mutant(VALID[path], rng)
        async with asyncio.timeout(60):
            response = await gateway.post(path, body)
        statuses[response.status_code] += 1
        assert response.status_code < 500, (body[:500], response.text)
        if response.status_code >= 400:
            error = msgspec.json.decode(response.content)["error"]
            assert {"message", "type"} <= set(error)  # Anthropic's envelope has no more
            assert len(response.content) < 4096
            assert "Traceback" not in response.text
    print(f"{path}: {dict(statuses)}")
    assert statuses[200] > 0
    assert statuses[400] > PER_ENDPOINT // 4
    assert (await gateway.chat("still there?")).status_code == 200
    assert gateway.parts.billing.admission.num_live == 0

"""What streams of other servers have lost, leaked or repeated: the same text, whole, however it is asked for.

A small model says on demand only what a regular expression makes it say.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.conftest import Weir

RARE = "🫠🥹龜👩‍🚀"  # no character of it has a token of its own
FOX = "The quick brown fox jumps"
FRANCE = "What is the capital of France?"  # no near tie among its best tokens
NO_CACHE = {"cache-control": "no-store"}


@pytest.fixture(scope="module")
def client(weir: Weir) -> OpenAI:
    return weir.client(default_headers=NO_CACHE, timeout=250)


def saying(text: str) -> dict[str, Any]:
    return {"response_format": {"type": "regex", "pattern": text}}


def chat(client: OpenAI, question: str = "Go on.", **fields: Any) -> tuple[str, str | None, int]:
    """Text, finish_reason and completion tokens of a plain chat."""
    done = client.chat.completions.create(
        model="smollm2", messages=[{"role": "user", "content": question}], **{"temperature": 0, **fields}
    )
    assert done.usage is not None
    return done.choices[0].message.content or "", done.choices[0].finish_reason, done.usage.completion_tokens


def streamed(client: OpenAI, question: str = "Go on.", **fields: Any) -> tuple[list[str], str | None, int]:
    """The same of a stream, its text as the deltas came."""
    pieces: list[str] = []
    finish, tokens = None, 0
    for chunk in client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": question}],
        stream=True,
        stream_options={"include_usage": True},
        **{"temperature": 0, **fields},
    ):
        tokens = chunk.usage.completion_tokens if chunk.usage else tokens
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            if choice.delta.content:
                pieces.append(choice.delta.content)
    return pieces, finish, tokens


# C1
def test_characters_over_several_tokens_arrive_whole(client: OpenAI) -> None:
    text, finish, tokens = chat(client, max_tokens=60, extra_body=saying(RARE))
    pieces, stream_finish, stream_tokens = streamed(client, max_tokens=60, extra_body=saying(RARE))

    assert (text, finish) == (RARE, "stop")
    assert ("".join(pieces), stream_finish, stream_tokens) == (RARE, "stop", tokens)
    assert tokens > len(RARE)  # or no character was split
    assert not any("\ufffd" in piece for piece in pieces)


# C3
@pytest.mark.parametrize(
    ("fields", "expected"),
    [(saying(FOX), "The quick br"), (saying(r'\{"said": "' + FOX + r'"\}'), '{"said": "The quick br')],
    ids=["text", "json"],
)
def test_a_stop_string_over_two_chunks_never_shows_its_beginning(
    client: OpenAI, fields: dict[str, Any], expected: str
) -> None:
    whole = chat(client, max_tokens=60, extra_body=fields)
    text, finish, tokens = chat(client, max_tokens=60, stop=["own fox"], extra_body=fields)
    pieces, stream_finish, stream_tokens = streamed(client, max_tokens=60, stop=["own fox"], extra_body=fields)

    assert (text, finish) == (expected, "stop")
    assert ("".join(pieces), stream_finish, stream_tokens) == (expected, "stop", tokens)
    assert tokens < whole[2]  # the generation ended there, too


# C3, on the other endpoint
def test_a_stop_string_cuts_a_completion_alike(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "smollm2", "prompt": "Fox: ", "max_tokens": 60, "stop": ["own fox"]}
    plain = client.completions.create(**asked, extra_body=saying(FOX))
    chunks = list(client.completions.create(**asked, stream=True, extra_body=saying(FOX)))

    assert (plain.choices[0].text, plain.choices[0].finish_reason) == ("The quick br", "stop")
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "The quick br"
    assert chunks[-1].choices[0].finish_reason == "stop"


# C4
@pytest.mark.parametrize("stop", ["\n\n\nNEVER-SEEN", "jumps over", "s, and never seen"])
def test_text_held_back_for_a_stop_that_never_comes_is_not_lost(client: OpenAI, stop: str) -> None:
    without, _, _ = streamed(client, max_tokens=60, extra_body=saying(FOX))
    pieces, finish, _ = streamed(client, max_tokens=60, stop=[stop], extra_body=saying(FOX))

    assert "".join(pieces) == "".join(without) == FOX
    assert finish == "stop"
    assert len(pieces) > len(without) / 2  # only what may be a stop's beginning was held, not as much as a stop is long


# C4, where the token limit ends the answer
def test_text_held_back_is_given_when_the_token_limit_ends_the_answer(client: OpenAI) -> None:
    without, _, _ = streamed(client, FRANCE, max_tokens=5)
    told = "".join(without)
    pieces, finish, tokens = streamed(client, FRANCE, max_tokens=5, stop=[told[-3:] + "NEVER-SEEN"])

    assert ("".join(pieces), finish, tokens) == (told, "length", 5)


# C20. In float32: bfloat16's products differ with the batch they are in, by more than lies between two tokens.
@pytest.mark.heavy
def test_neither_greedy_nor_seeded_answers_depend_on_the_neighbours(tmp_path: Path) -> None:
    server = Weir(tmp_path, "--dtype", "float32")
    server.start()
    client = server.client(default_headers=NO_CACHE, timeout=250)
    seeded: dict[str, Any] = {"temperature": 1, "seed": 7, "max_tokens": 8}
    alone = chat(client, FRANCE, max_tokens=8), chat(client, FRANCE, **seeded)

    with ThreadPoolExecutor(32) as pool:
        greedy = pool.submit(chat, client, FRANCE, max_tokens=8)
        others = [
            pool.submit(chat, client, f"Write line {number} about rain.", temperature=1, max_tokens=8)
            for number in range(30)
        ]
        chosen = pool.submit(chat, client, FRANCE, **seeded)
        among = greedy.result(), chosen.result()

    assert among == alone
    assert chat(client, FRANCE, **seeded) == alone[1]
    assert all(other.result()[2] > 0 for other in others)
    assert server.stop() == 0

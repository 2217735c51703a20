"""The main job on the real model: ask, stream, ask again, be limited, be billed."""

from __future__ import annotations

import concurrent.futures
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.e2e.conftest import Weir

MODEL = "smollm2"
FRANCE: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


class Customer:
    """A tenant of its own with one key, so that tests do not meet in one another's limits and caches."""

    def __init__(self, weir: Weir, slug: str, run: Callable[..., str] | None = None) -> None:
        self.weir = weir
        self.slug = slug
        run = run or weir.cli_here
        run("tenants", "create", slug)
        run("projects", "create", slug, "main")
        self.key = json.loads(run("keys", "create", slug, "main", "--json"))[0]["key"]
        self.client: OpenAI = weir.client(self.key)

    def limit(self, quota: str, hard: str) -> None:
        self.weir.cli("limits", "set", quota, "--tenant", self.slug, "--hard", hard)

    def ask(self, content: str, **options: Any) -> Any:
        return self.client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": content}], **{"temperature": 0, **options}
        )

    def raw(self, content: str, **options: Any) -> tuple[Any, dict[str, str]]:
        answer = self.client.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=[{"role": "user", "content": content}],
            **{"temperature": 0, "max_tokens": 64, **options},
        )
        return answer.parse(), dict(answer.headers)

    def spend(self) -> list[dict[str, Any]]:
        rows = self.weir.cli_json("report", "spend", "--by", "tenant,model")
        return [row for row in rows if row["tenant"] == self.slug]

    def ledger(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.weir.cli_json("ledger", "list", "--tenant", self.slug)
        return rows


@pytest.fixture
def customer(weir: Weir, request: pytest.FixtureRequest) -> Iterator[Customer]:
    slug = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[-50:].strip("-")
    made = Customer(weir, slug)
    yield made
    made.client.close()


def test_model_answers_and_streamed_deltas_join_to_the_plain_answer(customer: Customer) -> None:
    # given the cache kept out, so that both answers are generated
    nocache = {"extra_headers": {"cache-control": "no-cache, no-store"}}
    # when the same question is asked plain and streamed
    plain = customer.ask("What is the capital of France?", max_tokens=32, **nocache)
    stream = customer.ask(
        "What is the capital of France?", max_tokens=32, stream=True, stream_options={"include_usage": True}, **nocache
    )
    chunks = list(stream)
    # then it answers, the texts agree, and so do the counts
    text = plain.choices[0].message.content
    assert "Paris" in text
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    usage = chunks[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (plain.usage.prompt_tokens, plain.usage.completion_tokens)
    assert plain.usage.total_tokens == plain.usage.prompt_tokens + plain.usage.completion_tokens
    assert plain.usage.completion_tokens <= 32


def test_second_asking_comes_from_the_cache_and_another_tenant_misses(weir: Weir, customer: Customer) -> None:
    question = "Which planet is known as the red planet?"
    first, headers = customer.raw(question)
    assert headers["x-weir-cache"].startswith("miss")
    again, headers = customer.raw(question)
    assert headers["x-weir-cache"].startswith("hit")
    assert again.choices[0].message.content == first.choices[0].message.content
    stranger = Customer(weir, "stranger-to-the-red-planet", lambda *words: weir.cli(*words).stdout)
    _, headers = stranger.raw(question)
    assert headers["x-weir-cache"].startswith("miss")


def test_paraphrase_above_the_threshold_is_a_semantic_hit(customer: Customer) -> None:
    first, headers = customer.raw("What is the capital of Italy?")
    assert headers["x-weir-cache"].startswith("miss")
    again, headers = customer.raw("What's the capital of Italy?")
    assert headers["x-weir-cache"].startswith("semantic"), headers["x-weir-cache"]
    assert again.choices[0].message.content == first.choices[0].message.content


def test_fourth_request_of_a_minute_is_refused_with_retry_after(customer: Customer) -> None:
    customer.limit("rpm", "3")
    for number in range(3):
        customer.ask(f"Say the number {number}.", max_tokens=4)
    with pytest.raises(openai.RateLimitError) as refused:
        customer.ask("Say the number 3.", max_tokens=4)
    assert refused.value.code == "rate_limit_exceeded"
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60
    assert len(customer.ledger()) == 3  # the refused one consumed nothing


def test_concurrent_requests_never_pass_a_request_limit(customer: Customer) -> None:
    customer.limit("rpm", "3")

    def attempt(number: int) -> bool:
        try:
            customer.ask(f"Count to {number}.", max_tokens=4)
        except openai.RateLimitError:
            return False
        return True

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        admitted = list(pool.map(attempt, range(12)))
    assert sum(admitted) == 3


def test_budget_of_one_answer_refuses_the_second_as_insufficient_quota(weir: Weir, customer: Customer) -> None:
    # given a budget that one answer uses up: 16 tokens at 1000 USD a million are 0.016 USD
    weir.cli("prices", "set", MODEL, "--tenant", customer.slug, "--input", "0", "--output", "1000")
    customer.limit("budget_month", "0.016")
    # when it is spent
    first = customer.ask("Tell me a long story about a river.", max_tokens=16)
    assert first.usage.completion_tokens == 16
    with pytest.raises(openai.RateLimitError) as refused:
        customer.ask("Tell me a long story about a mountain.", max_tokens=16)
    # then the second is refused for good, without amounts in the message
    assert refused.value.code == "insufficient_quota"
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert "0.016" not in refused.value.message
    assert customer.spend()[0]["amount_usd"] == "0.016"


def test_concurrent_requests_never_pass_a_budget(weir: Weir, customer: Customer) -> None:
    weir.cli("prices", "set", MODEL, "--tenant", customer.slug, "--input", "0", "--output", "1000")
    customer.limit("budget_month", "0.02")

    def attempt(number: int) -> int:
        try:
            answer = customer.ask(f"Tell me a long story about the number {number}.", max_tokens=8)
        except openai.RateLimitError:
            return 0
        return int(answer.usage.completion_tokens)

    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        tokens = sum(pool.map(attempt, range(10)))
    assert 0 < tokens <= 20
    assert int(customer.spend()[0]["amount_nano_usd"]) == tokens * 1_000_000


def test_request_refused_at_the_hold_has_used_up_nothing(customer: Customer) -> None:
    # given two requests a day (a minute may pass in here), and tokens for one of this size
    customer.limit("rpd", "2")
    customer.limit("tpm", "150")
    customer.ask("Tell me a very long story about a lake.", max_tokens=100)
    with pytest.raises(openai.RateLimitError) as refused:
        customer.ask("Tell me a very long story about a hill.", max_tokens=100)
    assert refused.value.code == "rate_limit_exceeded"
    # when there are tokens again
    customer.limit("tpm", "100000")
    # then the second request of the day is still there, and after it none
    customer.ask("Say hello.", max_tokens=4)
    with pytest.raises(openai.RateLimitError):
        customer.ask("Say goodbye.", max_tokens=4)


def test_spend_report_is_the_ledger_is_tokens_times_prices_by_hand(weir: Weir, customer: Customer) -> None:
    weir.cli(
        "prices",
        "set",
        MODEL,
        "--tenant",
        customer.slug,
        "--input",
        "0.0375",
        "--cached-input",
        "0.01",
        "--output",
        "0.15",
    )
    answers = [customer.ask(f"Name {n} colours.", max_tokens=12) for n in (2, 3, 4)]
    by_hand = 0
    for answer in answers:
        cached = answer.usage.prompt_tokens_details.cached_tokens
        # rounded half-even once per class; Python's round of an exact integer ratio does the same
        by_hand += _nano(answer.usage.prompt_tokens - cached, 37_500_000) + _nano(cached, 10_000_000)
        by_hand += _nano(answer.usage.completion_tokens, 150_000_000)
    ledger = sum(int(row["amount_nano_usd"]) for row in customer.ledger())
    report = customer.spend()
    assert ledger == by_hand
    assert [int(row["amount_nano_usd"]) for row in report] == [by_hand]
    assert report[0]["completion_tokens"] == sum(a.usage.completion_tokens for a in answers)


def _nano(tokens: int, price: int) -> int:
    from fractions import Fraction

    return round(Fraction(tokens * price, 1_000_000))


BAD_BODIES: list[tuple[str, bytes, int, str | None]] = [
    ("malformed JSON", b'{"model": "smollm2", "messages": [', 400, None),
    (
        "NaN",
        b'{"model":"smollm2","temperature":NaN,"messages":[{"role":"user","content":"x"}]}',
        400,
        None,
    ),
    ("empty messages", b'{"model":"smollm2","messages":[]}', 400, "empty_array"),
    ("unknown model", b'{"model":"no-such","messages":[{"role":"user","content":"x"}]}', 404, "model_not_found"),
    (
        "over-long prompt",
        b'{"model":"smollm2","messages":[{"role":"user","content":"' + b"word " * 10_000 + b'"}]}',
        400,
        "context_length_exceeded",
    ),
    ("10,000 nested arrays", b'{"model":"smollm2","messages":' + b"[" * 10_000 + b"]" * 10_000 + b"}", 400, None),
]


@pytest.mark.parametrize(("body", "status", "code"), [c[1:] for c in BAD_BODIES], ids=[c[0] for c in BAD_BODIES])
def test_bad_input_gets_its_error_and_the_next_request_works(
    weir: Weir, body: bytes, status: int, code: str | None
) -> None:
    import httpx

    headers = {"authorization": f"Bearer {weir.demo['OPENAI_API_KEY']}", "content-type": "application/json"}
    answer = httpx.post(f"{weir.base_url}/chat/completions", content=body, headers=headers, timeout=60)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["code"] == code
    assert len(answer.content) < 4096
    with weir.client() as client:
        assert client.chat.completions.create(model=MODEL, messages=FRANCE, max_tokens=4).choices


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_an_echo_of_no_tokens_is_the_prompt_and_its_scores(weir: Weir, logprobs: int | None, stream: bool) -> None:
    options: dict[str, Any] = {} if logprobs is None else {"logprobs": logprobs}
    if stream:
        options.update(stream=True, stream_options={"include_usage": True})
    with weir.client() as client:
        answer: Any = client.completions.create(
            model=MODEL, prompt="The sky is blue", echo=True, max_tokens=0, **options
        )
        chunks = list(answer) if stream else [answer]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.text for choice in choices) == "The sky is blue"
    assert chunks[-1].usage.completion_tokens == 0
    if logprobs is not None:
        lists = choices[0].logprobs
        assert lists.token_logprobs[0] is None
        assert all(value < 0 for value in lists.token_logprobs[1:])
        assert len(lists.tokens) == len(lists.text_offset) == chunks[-1].usage.prompt_tokens


@pytest.mark.parametrize("key", [None, "sk-weir-wrong", "sk-weir-" + "0" * 18 + "-" + "0" * 52])
def test_missing_or_wrong_key_is_401_and_never_echoed(weir: Weir, key: str | None) -> None:
    import httpx

    headers = {"authorization": f"Bearer {key}"} if key else {}
    answer = httpx.post(f"{weir.base_url}/chat/completions", json={"model": MODEL, "messages": FRANCE}, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert key is None or key not in answer.text


def test_embeddings_come_from_the_packaged_model(weir: Weir) -> None:
    with weir.client() as client:
        answer = client.embeddings.create(model="all-MiniLM-L6-v2", input=["a cat", "a kitten", "the stock market"])
    cat, kitten, market = (item.embedding for item in answer.data)
    assert len(cat) == 384
    assert sum(a * b for a, b in zip(cat, kitten, strict=True)) > sum(a * b for a, b in zip(cat, market, strict=True))
    assert answer.usage.prompt_tokens > 0


def test_models_health_and_metrics(weir: Weir) -> None:
    import httpx

    base = weir.base_url.removesuffix("/v1")
    with weir.client() as client:
        assert MODEL in [model.id for model in client.models.list()]
    assert httpx.get(f"{base}/health").status_code == 200
    metrics = httpx.get(f"{base}/metrics").text
    assert "gateway_ttft_seconds" in metrics
    assert "vllm:num_requests_running" in metrics

"""Faults that real response caches have had, each as the small case that must hold here.

The numbers are those of the list they were collected in. Those that are about one module stand beside it: 5 and 8 in
test_partition, 11 in test_replay, 14 and 15 in test_vector_index and test_store, 16 in test_store and test_semantic,
18 in test_entry, 23 in test_policy. Cases 19 and 26 are about ledger rows and headers: they are the gateway's.
"""

from __future__ import annotations

from datetime import date

import pytest

from cache.entry import why_not_stored
from cache.outcome import Reason
from cache.policy import CachePolicy, decide
from cache.request import CacheControl
from cache.semantic import SemanticHit, SemanticMiss
from cache.store import RedisStore
from tests.cache.support import WordEmbedder, answer, chat, keys_of
from tests.cache.test_partition import TOOLS, image
from tests.cache.test_semantic import PARAPHRASE, QUESTION, World

TODAY = date(2026, 11, 29)


class Client:
    """Requests through policy, exact and semantic lookup and store, as the gateway puts them in order."""

    def __init__(self, store: RedisStore, policy: CachePolicy | None = None) -> None:
        self.world = World(store, WordEmbedder())
        self.policy = policy or CachePolicy(threshold=0.7)
        self.generated = 0

    async def ask(self, request, reply=None) -> tuple[str, str]:
        """The outcome and the content that came back; a miss generates `reply` and remembers it if it may."""
        made = decide(request, self.policy, today=TODAY)
        scope = made.end_user_scope
        partition, key = keys_of(request, end_user_scope=scope)
        if made.read:
            stage = self.world.store.lookup(request.tenant, key, partition, max_age_s=made.max_age_s)
            found = await stage.run(self.world.store.redis, timeout_s=60)
            if found.answer is not None:
                return "hit", found.answer.choices[0].content or ""
            if made.semantic:
                near = await self.world.semantic.lookup(
                    request.tenant, partition, found.version, request.text, threshold=made.threshold, timeout_s=60
                )
                if isinstance(near, SemanticHit):
                    return "semantic", near.answer.choices[0].content or ""
        self.generated += 1
        fresh = reply or answer(f"answer {self.generated}")
        whole = why_not_stored(fresh, max_bytes=self.policy.max_answer_bytes, allow_tool_calls=True) is None
        if made.write and whole:
            await self.world.remember(request, fresh, policy=self.policy, end_user_scope=scope)
        return "bypass" if made.bypass else "miss", fresh.choices[0].content or ""


@pytest.fixture
def client(store: RedisStore) -> Client:
    return Client(store)


async def test_1_the_same_request_of_a_second_tenant_misses_and_of_the_first_hits(client: Client) -> None:
    assert await client.ask(chat(tenant="a")) == ("miss", "answer 1")
    assert await client.ask(chat(tenant="b")) == ("miss", "answer 2")
    assert await client.ask(chat(tenant="a")) == ("hit", "answer 1")
    assert await client.ask(chat(tenant="b")) == ("hit", "answer 2")
    assert await client.ask(chat(PARAPHRASE, tenant="b")) == ("semantic", "answer 2")


async def test_2_one_long_question_of_two_users_is_not_shared_by_similarity(store: RedisStore) -> None:
    client = Client(store, CachePolicy(live_data="allow"))
    long = "Considering everything I told you about my finances, what do I still owe? " + "Details. " * 40
    assert (await client.ask(chat(long, tenant="t", end_user="u1")))[0] == "miss"
    assert (await client.ask(chat(long, tenant="t", end_user="u2")))[0] == "miss"
    assert (await client.ask(chat(long, tenant="t", end_user="u1")))[0] == "hit"


async def test_3_a_tenant_that_names_anothers_namespace_stays_inside_its_own(client: Client) -> None:
    await client.ask(chat(tenant="a", namespace="gold"))
    assert (await client.ask(chat(tenant="b", namespace="gold")))[0] == "miss"
    assert (await client.ask(chat(PARAPHRASE, tenant="b", namespace="gold")))[1] == "answer 2"
    assert (await client.ask(chat(tenant="a")))[0] == "miss"  # the namespace separates, in semantic entries too
    assert (await client.ask(chat(PARAPHRASE, tenant="a", namespace="gold"))) == ("semantic", "answer 1")


async def test_5_the_same_prompt_to_two_models_gets_two_answers(client: Client) -> None:
    assert await client.ask(chat(model="m1")) == ("miss", "answer 1")
    assert await client.ask(chat(model="m2")) == ("miss", "answer 2")
    assert await client.ask(chat(PARAPHRASE, model="m2")) == ("semantic", "answer 2")


async def test_7_a_follow_up_means_what_was_asked_before_it(client: Client) -> None:
    def about(company: str):
        earlier = [
            {"role": "user", "content": f"Tell me about the founder of {company}"},
            {"role": "assistant", "content": "A person."},
        ]
        return chat("How old is he?", earlier=earlier)

    assert await client.ask(about("OpenAI")) == ("miss", "answer 1")
    assert await client.ask(about("Apple")) == ("miss", "answer 2")
    assert await client.ask(about("OpenAI")) == ("hit", "answer 1")


async def test_8_identical_calls_with_tools_hit_where_the_policy_caches_them(store: RedisStore) -> None:
    client = Client(store, CachePolicy(tools="exact"))
    assert (await client.ask(chat(tools=TOOLS)))[0] == "miss"
    assert (await client.ask(chat(tools=[dict(reversed(TOOLS[0].items()))])))[0] == "hit"
    changed = {**TOOLS[0], "function": {**TOOLS[0]["function"], "description": "other"}}
    assert (await client.ask(chat(tools=[changed])))[0] == "miss"


async def test_9_stream_false_twice_hits_and_so_does_a_stream(client: Client) -> None:
    assert (await client.ask(chat(stream=False)))[0] == "miss"
    assert (await client.ask(chat(stream=False)))[0] == "hit"
    assert (await client.ask(chat(stream=True)))[0] == "hit"
    assert (await client.ask(chat()))[0] == "hit"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("How do I enable the pump alarm?", "How do I disable the pump alarm?"),
        ("How do I turn the pump on?", "How do I turn the pump off?"),
        ("Is the inlet valve open on that pump?", "Is the inlet valve closed on that pump?"),
        ("Is Kraken an exchange?", "Is Kraken not an exchange?"),
        ("Who is the pump alarm for?", "Who isn't the pump alarm for?"),
    ],
)
async def test_12_enable_and_disable_on_and_off_open_and_closed_is_and_is_not(store, first: str, second: str) -> None:
    client = Client(store, CachePolicy(threshold=0.0, live_data="allow"))
    assert (await client.ask(chat(first)))[0] == "miss"
    assert (await client.ask(chat(second)))[0] == "miss"


async def test_14_three_unlike_questions_get_three_answers(store: RedisStore) -> None:
    client = Client(store, CachePolicy(threshold=0.7, live_data="allow"))
    for number, text in enumerate(["Hello world", "1+1", "weather"], start=1):
        assert await client.ask(chat(text)) == ("miss", f"answer {number}")


async def test_15_after_a_change_of_embedder_old_entries_are_out_of_reach(store: RedisStore) -> None:
    old, new = World(store, WordEmbedder(fingerprint="a" * 64)), World(store, WordEmbedder(fingerprint="b" * 64))
    await old.remember(chat(QUESTION))
    assert isinstance(await old.ask(chat(PARAPHRASE)), SemanticHit)
    assert isinstance(await new.ask(chat(PARAPHRASE)), SemanticMiss)


async def test_18_neither_a_capped_answer_nor_a_failed_one_is_stored(client: Client) -> None:
    request = chat(max_tokens=16)
    assert (await client.ask(request, answer("Once upon a", finish_reason="length")))[0] == "miss"
    assert (await client.ask(request, answer("Sorry, an error", finish_reason="error")))[0] == "miss"
    assert (await client.ask(request, answer("Whole.")))[0] == "miss"
    assert await client.ask(request) == ("hit", "Whole.")


async def test_21_the_same_text_about_two_images_gets_two_answers(client: Client) -> None:
    assert (await client.ask(chat(image("data:image/png;base64,AAAA"))))[0] == "miss"
    assert (await client.ask(chat(image("data:image/png;base64,BBBB"))))[0] == "miss"
    assert (await client.ask(chat(image("data:image/png;base64,AAAA")))) == ("hit", "answer 1")


async def test_23_a_balance_is_never_anothers_and_without_an_end_user_not_cached(store: RedisStore) -> None:
    client = Client(store, CachePolicy(live_data="allow", threshold=0.7))
    text = "What is my account balance?"
    assert await client.ask(chat(text, end_user="u1")) == ("miss", "answer 1")
    assert await client.ask(chat(text, end_user="u2")) == ("miss", "answer 2")
    assert await client.ask(chat(text, end_user="u1")) == ("hit", "answer 1")
    assert (await client.ask(chat(text)))[0] == "bypass"
    assert decide(chat(text), client.policy, today=TODAY).reason is Reason.PERSONAL


async def test_24_no_cache_gets_a_fresh_answer_and_overwrites_the_bad_one(client: Client) -> None:
    await client.ask(chat(), answer("bad"))
    assert await client.ask(chat()) == ("hit", "bad")
    refresh = chat(control=CacheControl(no_cache=True))
    assert await client.ask(refresh, answer("good")) == ("miss", "good")
    assert await client.ask(chat()) == ("hit", "good")
    assert await client.ask(chat(PARAPHRASE)) == ("semantic", "good")


async def test_live_data_bypasses_on_read_and_on_write_before_any_embedding(client: Client) -> None:
    live = chat("What's the weather in Lima?")
    for number in (1, 2):
        assert await client.ask(live) == ("bypass", f"answer {number}")
    assert client.world.embedder.calls == 0
    assert not [key async for key in client.world.store.redis.scan_iter("*")]

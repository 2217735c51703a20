"""The partition: what determines an answer separates, what does not does not; callers can only narrow."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.canonical import canonical_json, framed_digest, normalised_text
from cache.errors import UncacheableRequest
from cache.partition import exact_key, partition_digest, tenant_digest
from tests.cache.support import FINGERPRINT, chat, keys_of

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "description": "Finds a train.",
            "parameters": {"type": "object", "properties": {"from": {"type": "string"}, "to": {"type": "string"}}},
        },
    }
]


def image(url: str, text: str = "What is this?") -> list[dict[str, object]]:
    return [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]


@pytest.mark.parametrize(
    "other",
    [
        {"tenant": "globex"},
        {"project": "app"},
        {"model": "m2"},
        {"model_revision": "r2"},
        {"system": "You are terse."},
        {"earlier": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
        {"tools": TOOLS},
        {"response_format": {"type": "json_object"}},
        {"temperature": 0},
        {"top_p": 0.5},
        {"max_tokens": 16},
        {"seed": 1},
        {"stop": ["\n"]},
        {"n": 2},
        {"logprobs": True},
        {"logit_bias": {"50256": -100}},
        {"frequency_penalty": 0.1},
        {"a_field_nobody_thought_of": 1},
        {"namespace": "mine"},
        {"text": image("data:image/png;base64,AAAA")},
    ],
    ids=lambda other: next(iter(other)),
)
def test_whatever_determines_the_answer_separates(other: dict[str, object]) -> None:
    """Case 5: the model was not in the key. Cases 1, 2, 7 and 21: tenant, user, earlier turns and image."""
    assert keys_of(chat(**other))[0] != keys_of(chat())[0]


@pytest.mark.parametrize(
    "other",
    [
        {"stream": True},
        {"stream": False},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"user": "u1"},
        {"metadata": {"k": "v"}},
        {"store": True},
        {"service_tier": "default"},
        {"temperature": 1},
        {"temperature": 1.0, "top_p": 1, "n": 1, "presence_penalty": 0.0},
        {"temperature": None, "tools": None, "stop": None},
        {"tools": [], "logit_bias": {}},
        {"response_format": {"type": "text"}},
        {"text": [{"type": "text", "text": "What is the capital of France?"}]},
        {"text": "  What is the   capital of France？ "},
        {"tags": ("faq",)},
    ],
    ids=str,
)
def test_whatever_does_not_determine_the_answer_does_not_separate(other: dict[str, object]) -> None:
    """Case 9: `stream: false`, `stream: true` and none share one entry."""
    assert keys_of(chat(**other)) == keys_of(chat())


def test_key_order_in_any_object_does_not_matter_but_every_value_does() -> None:
    """Case 8: permuting a tool's keys must hit, changing one description must miss."""

    def shuffled(value: object, rng: random.Random) -> object:
        if isinstance(value, dict):
            items = [(name, shuffled(item, rng)) for name, item in value.items()]
            rng.shuffle(items)
            return dict(items)
        return [shuffled(item, rng) for item in value] if isinstance(value, list) else value

    for seed in range(10):
        assert keys_of(chat(tools=shuffled(TOOLS, random.Random(seed)))) == keys_of(chat(tools=TOOLS))
    changed = [{**TOOLS[0], "function": {**TOOLS[0]["function"], "description": "Finds a tram."}}]
    assert keys_of(chat(tools=changed)) != keys_of(chat(tools=TOOLS))


def test_a_namespace_narrows_and_never_leads_into_anothers() -> None:
    """Case 3: any caller could name another's namespace."""
    a = keys_of(chat(tenant="a", namespace="shared"))[0]
    b = keys_of(chat(tenant="b", namespace="shared"))[0]
    assert len({a, b, keys_of(chat(tenant="a"))[0], keys_of(chat(tenant="a", namespace=""))[0]}) == 4


def test_neighbouring_fields_cannot_be_shifted_into_each_other() -> None:
    assert keys_of(chat(tenant="org_1", project="2345"))[0] != keys_of(chat(tenant="org_12345", project=""))[0]
    assert keys_of(chat(project="p", namespace="n"))[0] != keys_of(chat(project="pn"))[0]


def test_an_end_users_partition_is_his_own_and_not_the_shared_one() -> None:
    """Case 23: "my account balance" answered to another end user of the same tenant."""
    one, two = chat(end_user="u1"), chat(end_user="u2")
    scoped = [keys_of(request, end_user_scope=True)[0] for request in (one, two)]
    assert len({*scoped, keys_of(one)[0]}) == 3
    assert keys_of(one)[0] == keys_of(two)[0]


def test_max_completion_tokens_is_the_newer_name_of_max_tokens_and_wins() -> None:
    assert keys_of(chat(max_completion_tokens=9)) == keys_of(chat(max_tokens=9))
    assert keys_of(chat(max_completion_tokens=9, max_tokens=5)) == keys_of(chat(max_tokens=9))


def test_one_stop_string_is_a_list_of_one() -> None:
    assert keys_of(chat(stop="\n")) == keys_of(chat(stop=["\n"]))


def test_the_models_own_defaults_fill_what_the_body_leaves_out() -> None:
    import msgspec

    silent = msgspec.structs.replace(chat(), defaults={"temperature": 0.6})
    assert keys_of(silent) == keys_of(chat(temperature=0.6))
    assert keys_of(silent) != keys_of(chat())


def test_texts_around_an_image_cannot_be_split_otherwise() -> None:
    first = [{"type": "text", "text": "a\nb"}, *image("u", "c")[1:], {"type": "text", "text": "c"}]
    second = [{"type": "text", "text": "a"}, *image("u", "c")[1:], {"type": "text", "text": "b\nc"}]
    assert keys_of(chat(first)) != keys_of(chat(second))


def test_a_request_that_ends_in_no_user_text_has_a_key_over_everything() -> None:
    prefilled = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "A"}]
    import msgspec

    one = msgspec.structs.replace(chat(), body={"messages": prefilled})
    two = msgspec.structs.replace(chat(), body={"messages": [*prefilled[:1], {"role": "assistant", "content": "B"}]})
    assert one.text is None
    assert keys_of(one) != keys_of(two)


def test_a_completions_prompt_is_its_text_and_a_list_of_prompts_is_all_body() -> None:
    import msgspec

    def completion(prompt: object):
        return msgspec.structs.replace(chat(), body={"model": "m", "prompt": prompt}, endpoint="completions")

    assert keys_of(completion("a"))[0] == keys_of(completion("b"))[0]
    assert keys_of(completion("a"))[1] != keys_of(completion("b"))[1]
    assert keys_of(completion(["a", "b"]))[0] != keys_of(completion(["a", "c"]))[0]
    assert keys_of(completion([1, 2]))[0] != keys_of(completion([1, 3]))[0]


def test_case_and_line_ends_inside_code_are_kept() -> None:
    assert keys_of(chat("US")) != keys_of(chat("us"))
    assert normalised_text("a  b") == "a b"
    assert normalised_text("def f():\n    return  1") == "def f():\n    return  1"
    assert normalised_text("x² ＝ 4") == "x² = 4"


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": float("nan")},
        {"x": {1: 2}},
        {"logit_bias": {"1": float("inf")}},
        {"x": "\ud800"},
        {"x": object()},
    ],
    ids=["nan", "integer key", "infinity", "lone surrogate", "object"],
)
def test_a_body_without_canonical_form_has_no_key(body: dict[str, object]) -> None:
    with pytest.raises(UncacheableRequest):
        keys_of(chat(**body))


def test_ten_thousand_nested_arrays_are_refused_without_recursion() -> None:
    nested: object = []
    for _ in range(10_000):
        nested = [nested]
    with pytest.raises(UncacheableRequest, match="64 levels"):
        keys_of(chat(x=nested))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(JSON, JSON)
def test_canonical_json_is_equal_exactly_when_the_values_are(a: object, b: object) -> None:
    same = _typed(a) == _typed(b)
    assert (canonical_json(a) == canonical_json(b)) is same


def _typed(value: object) -> object:
    """Python holds True == 1; JSON does not."""
    if isinstance(value, dict):
        return {name: _typed(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_typed(item) for item in value]
    return (type(value).__name__, value)


@given(st.lists(st.text(max_size=4), max_size=4), st.lists(st.text(max_size=4), max_size=4))
def test_framed_digests_are_equal_exactly_when_the_fields_are(a: list[str], b: list[str]) -> None:
    assert (framed_digest(a) == framed_digest(b)) is (a == b)


def test_true_is_no_default_that_is_a_number() -> None:
    assert keys_of(chat()) == keys_of(chat(n=1)) != keys_of(chat(n=True))


def test_names_in_keys_are_hex_and_do_not_change_between_releases() -> None:
    partition = partition_digest(chat(), embedder_fingerprint=FINGERPRINT, end_user_scope=False)
    assert set(partition + exact_key(partition, "x") + tenant_digest("acme")) <= set("0123456789abcdef")
    # A change here makes every stored answer unreachable: raise SCHEMA and say so in the release notes.
    assert tenant_digest("acme") == PINNED_TENANT
    assert partition == PINNED_PARTITION


PINNED_TENANT = "69c642b11b1006dd9fc24eb1d7796802"
PINNED_PARTITION = "bdb862e9804f9420328e6fe7831c1b15f7ba889a71fa2a5c8ac59375131798f9"

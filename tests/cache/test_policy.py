"""What may be read, written and matched by meaning, and why not."""

from __future__ import annotations

import time
from datetime import date
from typing import Any

import msgspec
import pytest

from cache.errors import InvalidCacheControl
from cache.outcome import Reason
from cache.policy import CachePolicy, RouteCachePolicy, decide
from cache.request import CacheControl
from tests.cache.support import chat

TODAY = date(2026, 11, 29)
TOOL = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
TOOL_TURN = [
    {"role": "user", "content": "Find me a train"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "12:30"},
]


def decision(request=None, policy: CachePolicy | None = None):
    return decide(request or chat(), policy or CachePolicy(), today=TODAY)


def test_a_plain_question_is_read_written_and_matched_by_meaning() -> None:
    made = decision()
    assert (made.read, made.write, made.semantic, made.reason) == (True, True, True, Reason.NONE)
    assert made.threshold == 0.95


@pytest.mark.parametrize(
    ("request_", "policy", "reason"),
    [
        (chat(), CachePolicy(enabled=False), Reason.DISABLED),
        (chat(tools=TOOL), CachePolicy(), Reason.TOOLS),
        (chat(functions=[{"name": "f"}]), CachePolicy(), Reason.TOOLS),
        (chat("And the next?", earlier=TOOL_TURN), CachePolicy(), Reason.TOOLS),
        (chat(retrieval=True), CachePolicy(), Reason.RETRIEVAL),
        (chat(web_search_options={}), CachePolicy(), Reason.RETRIEVAL),
        (chat("What's the weather in Rome?"), CachePolicy(), Reason.LIVE),
        (chat(temperature=1.2), CachePolicy(), Reason.TEMPERATURE),
        (chat(), CachePolicy(max_temperature=0), Reason.TEMPERATURE),
        (chat("What do I owe?"), CachePolicy(), Reason.LIVE),
        (chat("What do I owe?"), CachePolicy(live_data="allow"), Reason.PERSONAL),
        (chat("How do I reset my password?"), CachePolicy(personal="bypass"), Reason.PERSONAL),
        (chat(control=CacheControl(no_cache=True, no_store=True)), CachePolicy(), Reason.NO_STORE),
    ],
    ids=lambda value: value.value if isinstance(value, Reason) else "",
)
def test_a_bypass_neither_reads_nor_writes_and_names_its_reason(request_, policy, reason) -> None:
    made = decision(request_, policy)
    assert (made.bypass, made.semantic, made.reason) == (True, False, reason)


@pytest.mark.parametrize(
    ("request_", "policy"),
    [
        (chat("What's the weather in Rome?"), CachePolicy(live_data="allow")),
        (chat(temperature=1.0), CachePolicy()),
        (chat(temperature=0), CachePolicy(max_temperature=0)),
        (chat("What do I owe?", end_user="u1"), CachePolicy(live_data="allow")),
        (chat("What do I owe?"), CachePolicy(personal="share", live_data="allow")),
        (chat("How do I reset my password?"), CachePolicy()),
    ],
)
def test_what_a_policy_allows_is_read_and_written(request_, policy) -> None:
    assert not decision(request_, policy).bypass


def test_tools_may_be_cached_exactly_where_the_policy_asks_for_it() -> None:
    """Case 8: identical calls with tools never hit."""
    made = decision(chat(tools=TOOL), CachePolicy(tools="exact"))
    assert (made.read, made.write, made.semantic) == (True, True, False)


def test_a_follow_up_to_a_live_question_is_live_too() -> None:
    earlier = [{"role": "user", "content": "What's the weather in Rome?"}, {"role": "assistant", "content": "Sunny."}]
    assert decision(chat("And in Paris?", earlier=earlier)).reason is Reason.LIVE
    unrelated = "Explain in a few sentences how the French Revolution began and who took part in it."
    assert not decision(chat(unrelated, earlier=earlier)).bypass


@pytest.mark.parametrize("body", [{"n": 2}, {"logprobs": True}, {"seed": 5}, {"best_of": 3}])
def test_what_belongs_to_one_prompt_is_matched_exactly_only(body) -> None:
    made = decision(chat(**body))
    assert (made.read, made.write, made.semantic) == (True, True, False)


def test_a_completion_is_matched_exactly_only() -> None:
    made = decision(msgspec.structs.replace(chat(), body={"prompt": "Once upon a time"}, endpoint="completions"))
    assert (made.read, made.write, made.semantic) == (True, True, False)


def test_no_cache_refreshes_and_no_store_only_reads() -> None:
    refresh = decision(chat(control=CacheControl(no_cache=True)))
    assert (refresh.read, refresh.write, refresh.reason) == (False, True, Reason.NO_CACHE)
    peek = decision(chat(control=CacheControl(no_store=True)))
    assert (peek.read, peek.write) == (True, False)


@pytest.mark.parametrize(("asked", "used"), [(None, 0.9), (0.5, 0.9), (0.97, 0.97), (1.0, 1.0)])
def test_a_requests_threshold_can_only_be_stricter(asked, used) -> None:
    made = decision(chat(control=CacheControl(threshold=asked)), CachePolicy(threshold=0.9))
    assert made.threshold == used


def test_personal_wording_is_kept_to_the_end_user() -> None:
    """Case 23: "my account balance" answered to another end user of the same tenant."""
    assert decision(chat("Why was my card declined?", end_user="u1")).end_user_scope
    assert decision(chat("How do I reset my password?", end_user="u1")).end_user_scope
    assert not decision(chat("What is the capital of France?", end_user="u1")).end_user_scope
    assert not decision(chat("How do I reset my password?")).end_user_scope


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, CacheControl()),
        ("", CacheControl()),
        ("no-cache", CacheControl(no_cache=True)),
        ("No-Cache, NO-STORE", CacheControl(no_cache=True, no_store=True)),
        ("max-age=60", CacheControl(max_age_s=60)),
        ('max-age="60" , stale-if-error=5', CacheControl(max_age_s=60)),
        ("max-age=0", CacheControl(max_age_s=0)),
        ("only-if-cached, ???", CacheControl()),
        ("max-age=999999999999", CacheControl(max_age_s=10 * 365 * 86_400)),
    ],
)
def test_cache_control_is_read_as_rfc_9111_writes_it(header, expected) -> None:
    assert CacheControl.parse(header) == expected


@pytest.mark.parametrize("header", ["max-age", "max-age=", "max-age=-1", "max-age=1.5", "max-age=soon", "max-age=²"])
def test_a_max_age_that_is_no_number_is_the_callers_fault(header) -> None:
    with pytest.raises(InvalidCacheControl, match="max-age"):
        CacheControl.parse(header)


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_a_threshold_outside_zero_to_one_is_the_callers_fault(threshold) -> None:
    with pytest.raises(InvalidCacheControl, match="threshold"):
        CacheControl.parse(None, threshold=threshold)


@pytest.mark.parametrize(
    "settings", [{"threshold": 1.5}, {"ttl_s": 0}, {"max_entries": 0}, {"max_bytes": -1}, {"shadow_share": 2.0}]
)
def test_a_policy_out_of_bounds_is_refused_by_name(settings) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        CachePolicy(**settings)


@pytest.mark.parametrize(
    "piece", ["is the ", "my ", "is my order ", "what is a ", "今天", "a", "1 ", "\n", "(" * 7, "how many "]
)
def test_a_megabyte_of_anything_is_decided_in_no_time(piece: str) -> None:
    request = chat(piece * (1_000_000 // len(piece)))
    started = time.process_time()
    decision(request)
    assert time.process_time() - started < 0.25


def test_in_a_long_text_the_question_is_read_at_both_ends() -> None:
    document = "The weather was fine that day. " * 200
    assert decision(chat(f"What's the weather today? {document}")).reason is Reason.LIVE
    assert decision(chat(f"{document} What's the weather today?")).reason is Reason.LIVE


@pytest.mark.parametrize(
    ("route", "policy", "both"),
    [
        ({}, {"threshold": 0.9, "ttl_s": 5}, {"threshold": 0.9, "ttl_s": 5}),
        ({"threshold": 0.97}, {"threshold": 0.9}, {"threshold": 0.97}),
        ({"threshold": 0.8}, {"threshold": 0.9}, {"threshold": 0.9}),
        ({"ttl_s": 60}, {"ttl_s": None}, {"ttl_s": 60}),
        ({"ttl_s": 60}, {"ttl_s": 30}, {"ttl_s": 30}),
        ({"enabled": True}, {"enabled": False}, {"enabled": False}),
        ({"semantic": False}, {"semantic": True}, {"semantic": False}),
        ({"live_data": "bypass"}, {"live_data": "allow"}, {"live_data": "bypass"}),
        ({}, {"live_data": "allow", "hit_price": "25%"}, {"live_data": "allow", "hit_price": "25%"}),
    ],
)
def test_a_route_makes_a_policy_stricter_and_never_looser(
    route: dict[str, Any], policy: dict[str, Any], both: dict[str, Any]
) -> None:
    assert RouteCachePolicy(**route).narrows(CachePolicy(**policy)) == CachePolicy(**both)


def test_a_life_that_was_shortened_binds_what_was_stored_before() -> None:
    assert decide(chat("What is a weir?"), CachePolicy(ttl_s=60), today=TODAY).max_age_s == 60
    hurried = chat("What is a weir?", control=CacheControl(max_age_s=5))
    assert decide(hurried, CachePolicy(ttl_s=60), today=TODAY).max_age_s == 5
    assert decide(hurried, CachePolicy(ttl_s=None), today=TODAY).max_age_s == 5

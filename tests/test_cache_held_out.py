"""The cache's held-out data: well-formed, balanced, and apart from the data that guards are tuned on."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from benchmarks import cache_live, cache_quality

PARAPHRASES = {
    "en": {
        "word-order": 28, "synonym": 36, "contraction": 20, "imperative": 32, "filler": 28, "voice": 24, "mixed": 32,
    },
    "zh": {"word-order": 14, "synonym": 20, "filler": 16, "imperative": 14, "voice": 12, "mixed": 24},
}  # fmt: skip
NEGATIVES = {
    "en": {
        "number": 16, "ordinal": 10, "negation": 16, "direction": 14, "role": 12, "antonym": 14, "entity": 14,
        "code": 12, "date": 14, "unit": 12, "one-word": 18, "quantifier": 12, "comparison": 10, "before-after": 10,
        "modal": 8, "tense": 8,
    },
    "zh": {
        "number": 8, "ordinal": 5, "negation": 9, "direction": 8, "role": 6, "antonym": 9, "entity": 8,
        "code": 6, "date": 7, "unit": 6, "one-word": 10, "quantifier": 5, "comparison": 4, "before-after": 4,
        "modal": 3, "tense": 2,
    },
}  # fmt: skip


def normal(question: str) -> str:
    return re.sub(r"\W+", " ", question.lower()).strip()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_class_has_its_count_under_both_labels(language):
    counts = Counter((pair.label, pair.cls) for pair in cache_quality.load(language, "held-out"))
    wanted = {("paraphrase", cls): count for cls, count in PARAPHRASES[language].items()}
    wanted |= {("negative", cls): count for cls, count in NEGATIVES[language].items()}
    assert counts == wanted


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_question_occurs_twice_and_every_group_is_one_pair(language):
    pairs = cache_quality.load(language, "held-out")
    questions = Counter(text.strip().lower() for pair in pairs for text in (pair.a, pair.b))
    assert [text for text, count in questions.items() if count > 1 or not text] == []
    assert len({pair.group for pair in pairs}) == len(pairs)
    assert {(pair.lang, pair.split) for pair in pairs} == {(language, "held-out")}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_held_out_question_is_among_the_pairs_tuned_on(language):
    tuned_on = {normal(text) for pair in cache_quality.load(language, "all") for text in (pair.a, pair.b)}
    held_out = {normal(text) for pair in cache_quality.load(language, "held-out") for text in (pair.a, pair.b)}
    assert tuned_on
    assert held_out & tuned_on == set()


# Written for the development data later, by somebody who had not seen this set; each is live in both.
BY_BOTH_AUTHORS = {"what s the score in the lakers game", "what grade did i get in chemistry"}


def test_live_questions_are_half_live_in_each_language_and_apart_from_the_known_ones():
    rows = [row for name in cache_live.FILES["held-out"] for row in cache_live.load(name)]
    known = {normal(question) for name in cache_live.FILES["known"] for _, question in cache_live.load(name)}
    chinese = re.compile(r"[\u4e00-\u9fff]")
    counts = Counter((label, "zh" if chinese.search(question) else "en") for label, question in rows)
    assert counts == {("live", "en"): 70, ("stable", "en"): 70, ("live", "zh"): 30, ("stable", "zh"): 30}
    held_out = {normal(question) for _, question in rows}
    assert len(held_out) == len(rows)
    assert held_out & known == BY_BOTH_AUTHORS

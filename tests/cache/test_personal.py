"""First-person wording, and how far it is the asker's own state."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache import personal
from cache.personal import Personal, personal_degree


@pytest.mark.parametrize(
    ("text", "degree"),
    [
        ("Where is my order?", Personal.STATE),
        ("What is my account balance?", Personal.STATE),
        ("Do I owe anything?", Personal.STATE),
        ("Why was my card declined?", Personal.STATE),
        ("Show me my invoices", Personal.STATE),
        ("我的订单在哪里？", Personal.STATE),
        ("我还有几天年假？", Personal.STATE),
        ("¿Dónde está mi pedido?", Personal.STATE),
        ("How do I reset my password?", Personal.WORDING),
        ("Can I change my address?", Personal.WORDING),
        ("I forgot my password", Personal.WORDING),
        ("怎么重置我的密码？", Personal.WORDING),
        ("What is the capital of France?", Personal.NONE),
        ("Tell me a joke", Personal.NONE),
        ("Do I need a visa for Japan?", Personal.NONE),
        ("How can I convert euros to dollars?", Personal.NONE),
        ("怎么重置密码？", Personal.NONE),
    ],
)
def test_personal_degree(text: str, degree: Personal) -> None:
    assert personal_degree(text) is degree


def test_a_question_without_a_first_person_is_never_personal() -> None:
    lists = Path(__file__).parents[2] / "benchmarks" / "data" / "cache_quality"
    texts = [
        line.split("\t")[-1].lower()
        for path in lists.glob("*live*.tsv")
        for line in path.read_text("utf-8").splitlines()
    ]
    texts += [
        "wo ist mein paket?",
        "où est monsieur?",
        "dónde está mi pedido?",
        "unsere bestellung",
        "本人的账户",
        "咱们",
    ]
    own = [text for text in texts if personal._STATE.search(text) or personal._WORDING.search(text)]
    assert len(own) > 100
    assert [text for text in own if not personal._FIRST_PERSON.search(text)] == []

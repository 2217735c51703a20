"""First-person wording, and how far it is the asker's own state."""

from __future__ import annotations

import pytest

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

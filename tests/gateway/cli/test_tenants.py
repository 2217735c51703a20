"""`weir tenants`: a tenant's cache policy, field by field."""

from __future__ import annotations

import pytest

from billing.errors import Invalid
from tests.gateway.cli.conftest import Weir


def policy(weir: Weir) -> object:
    return weir.json("tenants", "list")[0]["cache_policy"]


def test_fields_of_the_cache_policy_are_set_one_by_one_and_taken_back(weir: Weir) -> None:
    weir.ok("tenants", "update", "acme", "--cache", "hit_price=12.5%", "--cache", "ttl_s=600")
    weir.ok("tenants", "update", "acme", "--cache", "semantic=false")
    assert policy(weir) == {"hit_price": "12.5%", "ttl_s": 600, "semantic": False}
    weir.ok("tenants", "update", "acme", "--cache", "ttl_s=", "--cache", "hit_price=full", "--name", "Acme")
    assert policy(weir) == {"hit_price": "full", "semantic": False}
    weir.ok("tenants", "create", "globex", "--cache", "hit_price=free")
    assert {row["slug"]: row["cache_policy"] for row in weir.json("tenants", "list")}["globex"] == {"hit_price": "free"}


@pytest.mark.parametrize("text", ["hit_price=120%", "hit_price=0.25", "colour=red", "ttl_s=soon", "ttl_s"])
def test_a_field_that_cannot_be_is_refused_and_changes_nothing(weir: Weir, text: str) -> None:
    refused = weir.run("tenants", "update", "acme", "--cache", "enabled=false", "--cache", text)
    assert isinstance(refused.exception, Invalid)
    assert text.partition("=")[0] in str(refused.exception)
    assert policy(weir) == {}

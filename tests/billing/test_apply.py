"""Bulk changes: the difference first, then all of it or nothing, and nothing the second time."""

from __future__ import annotations

import pytest

from billing import apply, config, tenants
from billing.clock import utc_now
from billing.errors import Conflict, Forbidden, Invalid, NotFound
from billing.limits.rules import list_limits
from tests.billing.support import OPERATOR, World

FILE = b"""
[[tenants]]
slug = "globex"
time_zone = "Europe/Berlin"
grace = "1.50"
limits = { rpm = 600, budget_month = { hard = "2500000.370000001", soft = "2000" } }
discounts = { "*" = "15" }
[[tenants.projects]]
slug = "web"
limits = { "tpm@smollm2" = 20000 }

[[prices]]
model = "smollm2"
input = "0.0375"
cached_input = "0.00375"
output = "0.15"

[config.route.default]
upstreams = ["local"]
"""


async def run(world: World, data: bytes) -> list[apply.Difference]:
    async with world.billing.db.begin() as session:
        return await apply.apply(session, OPERATOR, apply.parse(data))


async def test_the_difference_is_shown_before_and_is_empty_after(world: World) -> None:
    async with world.billing.db.read() as session:
        planned = await apply.plan(session, OPERATOR, apply.parse(FILE))
        assert await config.list_items(session, "route") == []
    done = await run(world, FILE)
    assert done == planned
    assert [(d.action, d.what) for d in done] == [
        ("create", "tenant globex"),
        ("create", "tenant globex rpm"),
        ("create", "tenant globex budget_month"),
        ("create", "project globex/web"),
        ("create", "project globex/web tpm@smollm2"),
        ("create", "discount globex *"),
        ("create", "price smollm2 (default)"),
        ("create", "route default"),
    ]
    assert await run(world, FILE) == []
    async with world.billing.db.read() as session:
        tenant = await tenants.get_tenant(session, OPERATOR, "globex")
        limits = {rule.quota: (rule.hard, rule.soft) for rule in await list_limits(session, OPERATOR, tenant="globex")}
    assert (tenant.time_zone, tenant.grace_nano_usd) == ("Europe/Berlin", 1_500_000_000)
    assert limits["budget_month"] == (2_500_000_370_000_001, 2_000 * 10**9)
    assert (await world.billing.prices.rates(tenant.id, "smollm2", at=utc_now())).discount_ppm == 150_000


async def test_a_change_shows_old_and_new_and_unnamed_limits_of_a_named_scope_go(world: World) -> None:
    await run(world, FILE)
    changed = FILE.replace(b"rpm = 600, ", b"").replace(b'"0.0375"', b'"0.05"').replace(b'["local"]', b'["other"]')
    differences = await run(world, changed)
    assert [(d.action, d.what, d.old, d.new) for d in differences] == [
        ("remove", "tenant globex rpm", "hard 600", None),
        (
            "change",
            "price smollm2 (default)",
            "0.0375 / 0.00375 / 0.15 / 0.0375 / 0.15",
            "0.05 / 0.00375 / 0.15 / 0.05 / 0.15",
        ),
        ("change", "route default", '{"upstreams":["local"]}', '{"upstreams":["other"]}'),
    ]


async def test_a_file_that_fails_half_way_changes_nothing(world: World) -> None:
    bad = FILE + b'\n[[prices]]\nmodel = "x"\ninput = "0.1"\noutput = "0.1"\ntenant = "nobody"\n'
    with pytest.raises(NotFound):
        await run(world, bad)
    async with world.billing.db.read() as session:
        with pytest.raises(NotFound):
            await tenants.get_tenant(session, OPERATOR, "globex")


async def test_a_cache_policy_is_replaced_whole_where_the_file_has_one(world: World) -> None:
    with_policy = FILE.replace(b'grace = "1.50"', b'grace = "1.50"\ncache_policy = { hit_price = "25%", ttl_s = 60 }')
    await run(world, with_policy)
    assert await run(world, FILE) == []  # what the file does not name stays
    differences = await run(world, with_policy.replace(b", ttl_s = 60", b""))
    assert [(d.action, d.what, d.old, d.new) for d in differences] == [
        ("change", "tenant globex cache_policy", '{"hit_price":"25%","ttl_s":60}', '{"hit_price":"25%"}')
    ]


@pytest.mark.parametrize(
    "data",
    [
        b'[[tenants]]\nslug = "a"\ncolour = "blue"',
        b'[[tenants]]\nslug = "A B"',
        b'[[tenants]]\nslug = "a"\nlimits = { rpx = 5 }',
        b'[[tenants]]\nslug = "a"\nlimits = { rpm = "lots" }',
        b'[[tenants]]\nslug = "a"\nlimits = { budget_day = "1e3" }',
        b'[[tenants]]\nslug = "a"\ntime_zone = "Mars/Olympus"',
        b'[[prices]]\nmodel = "m"\ninput = "NaN"\noutput = "1"',
        b"not toml at all",
        b"\xff\xfe",
    ],
)
async def test_a_file_with_a_fault_is_refused_with_its_place(sqlite_world: World, data: bytes) -> None:
    with pytest.raises(Invalid):
        await run(sqlite_world, data)


async def test_only_an_operator_applies(sqlite_world: World) -> None:
    async with sqlite_world.billing.db.begin() as session:
        with pytest.raises(Forbidden):
            await apply.apply(session, sqlite_world.admin, apply.parse(FILE))


async def test_a_document_is_replaced_only_at_the_version_it_was_read_at(world: World) -> None:
    async with world.billing.db.begin() as session:
        item = await config.set_item(session, OPERATOR, "alias", "gpt-4", {"model": "smollm2"})
        assert item.version == 1
        await config.set_item(session, OPERATOR, "alias", "gpt-4", {"model": "gemma"}, version=1)
        with pytest.raises(Conflict):
            await config.set_item(session, OPERATOR, "alias", "gpt-4", {"model": "x"}, version=1)
    heard: list[tuple[str, str]] = []
    world.billing.bus.listen(lambda kind, id: heard.append((kind, id)))
    async with world.billing.db.begin() as session:
        await config.remove_item(session, OPERATOR, "alias", "gpt-4")
        assert heard == []  # nobody hears of it before it is committed
    assert heard == [("config", "alias")]

"""Keys and what they open: shown once, refused at once when revoked, never our fault as a 401."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from redis.asyncio import Redis
from sqlalchemy.exc import OperationalError

from billing import keys, tenants
from billing.audit import list_events
from billing.auth import MAX_NEGATIVE, Authenticator
from billing.bus import ChangeBus
from billing.db import Database
from billing.errors import AuthUnavailable, BillingError, Conflict, Forbidden, Invalid, InvalidKey, KeyExpired, NotFound
from billing.ids import base32
from billing.principal import Actor, Role, Scope
from billing.secrets import ServerSecret
from billing.tables import ApiKey, Status
from tests.billing.support import OPERATOR, FakeClock, FakeMonotonic, ValkeyProcess, World


class Flaky(Database):
    """The real database behind a switch: `away` makes reading fail as a lost connection does."""

    away = False
    reads = 0

    def read(self):  # type: ignore[no-untyped-def]
        self.reads += 1
        if self.away:
            raise OperationalError("SELECT", {}, OSError("connection refused"))
        return super().read()


@pytest.fixture
async def flaky(sqlite_url: str) -> AsyncIterator[Flaky]:
    database = Flaky(sqlite_url)
    yield database
    await database.close()


async def test_a_key_is_stored_only_as_its_hmac(world: World) -> None:
    secret_part = world.plaintext.rsplit("-", 1)[1]
    async with world.billing.db.read() as session:
        row = (await session.execute(sa.select(ApiKey))).scalar_one()
        stored = [str(getattr(row, column.key)) for column in sa.inspect(ApiKey).columns]
        events = await list_events(session, OPERATOR)
    assert all(secret_part not in text for text in stored)
    assert all(secret_part not in str(event.detail) for event in events)
    assert row.redacted.endswith(secret_part[-4:])
    assert len(row.digest) == 32


async def test_a_new_key_says_who_and_what_it_may(world: World) -> None:
    principal = await world.principal()
    assert (principal.tenant_slug, principal.project_slug, principal.key_id) == ("acme", "web", world.key.id)
    assert principal.scopes == {"inference"}
    assert principal.may_use("anything")


def tampered(plaintext: str) -> list[str]:
    public = plaintext.removeprefix("sk-weir-").split("-")[0]
    last = "0" if plaintext[-1] != "0" else "1"
    return [
        "",
        "sk-weir-",
        plaintext[:-1],
        plaintext + "0",
        plaintext[:-1] + last,
        plaintext.replace("sk-weir-", "sk-proj-"),
        plaintext.upper(),
        f"sk-weir-{'0' * 18}-{plaintext.rsplit('-', 1)[1]}",
        f"sk-weir-{public}-{'0' * 52}",
        "sk-weir-" + "0" * 10_000,
        plaintext + "\0",
        plaintext + "é",
    ]


async def test_truncated_foreign_and_tampered_keys_are_refused_without_being_echoed(sqlite_world: World) -> None:
    for presented in tampered(sqlite_world.plaintext):
        with pytest.raises(InvalidKey) as refusal:
            await sqlite_world.billing.auth.authenticate(presented)
        secret_part = sqlite_world.plaintext.rsplit("-", 1)[1]
        assert secret_part[:8] not in str(refusal.value)
        assert len(str(refusal.value)) < 60


async def test_an_expired_key_says_so_and_a_wrong_one_does_not(sqlite_world: World, clock: FakeClock) -> None:
    world = sqlite_world
    async with world.billing.db.begin() as session:
        new = await keys.create_key(
            session, OPERATOR, world.billing.secret, world.project.id, name="short",
            expires_at=clock.now + timedelta(days=400),
        )  # fmt: skip
    await world.billing.auth.authenticate(new.plaintext)
    clock.advance(401 * 86_400)
    with pytest.raises(KeyExpired):
        await world.billing.auth.authenticate(new.plaintext)
    wrong = new.plaintext[:-1] + ("0" if new.plaintext[-1] != "0" else "1")
    with pytest.raises(InvalidKey):
        await world.billing.auth.authenticate(wrong)


async def test_after_rotation_both_secrets_work_until_the_grace_is_over(sqlite_world: World, clock: FakeClock) -> None:
    from datetime import UTC, datetime

    world = sqlite_world
    clock.now = datetime.now(UTC)
    async with world.billing.db.begin() as session:
        new = await keys.rotate_key(session, OPERATOR, world.billing.secret, world.key.id, grace=timedelta(hours=1))
    auth = world.billing.auth
    assert (await auth.authenticate(world.plaintext)).key_id == (await auth.authenticate(new.plaintext)).key_id
    clock.advance(3_601)
    with pytest.raises(KeyExpired):
        await auth.authenticate(world.plaintext)
    await auth.authenticate(new.plaintext)


async def test_revoking_on_one_gateway_is_refused_on_the_other_as_soon_as_it_hears(
    world: World, shared_valkey: ValkeyProcess, monotonic: FakeMonotonic
) -> None:
    # given two gateways that know the key
    other_redis = Redis(unix_socket_path=shared_valkey.socket)
    other_bus = ChangeBus(other_redis)
    other = Authenticator(world.billing.db, world.billing.secret, bus=other_bus, monotonic=monotonic)
    other_bus.start()
    world.billing.bus.start()
    await asyncio.wait_for(asyncio.gather(other_bus.subscribed.wait(), world.billing.bus.subscribed.wait()), 60)
    await other.authenticate(world.plaintext)
    # when one revokes it
    async with world.billing.db.begin() as session:
        await keys.revoke_key(session, OPERATOR, world.key.id)
    # then the other refuses it, although no time passes in which what it knows could run out
    async with asyncio.timeout(60):
        while True:
            try:
                await other.authenticate(world.plaintext)
            except InvalidKey:
                break
            await asyncio.sleep(0.005)
    with pytest.raises(InvalidKey):
        await world.billing.auth.authenticate(world.plaintext)
    await other_bus.stop()
    await other_redis.aclose()


async def test_while_the_bus_is_deaf_a_revocation_is_seen_within_a_second(
    sqlite_world: World, monotonic: FakeMonotonic
) -> None:
    world = sqlite_world
    deaf = ChangeBus(world.billing.redis)  # never started: as if the subscription were down
    auth = Authenticator(world.billing.db, world.billing.secret, bus=deaf, monotonic=monotonic)
    await auth.authenticate(world.plaintext)
    async with world.billing.db.begin() as session:
        await keys.revoke_key(session, OPERATOR, world.key.id)
    monotonic.advance(0.9)
    with pytest.raises(InvalidKey):
        await auth.authenticate(world.plaintext)


async def test_a_known_key_works_while_sql_is_away_and_an_unknown_one_is_not_called_wrong(
    sqlite_world: World, flaky: Flaky, monotonic: FakeMonotonic
) -> None:
    world = sqlite_world
    auth = Authenticator(flaky, world.billing.secret, monotonic=monotonic)
    await auth.authenticate(world.plaintext)
    async with world.billing.db.begin() as session:
        unseen = await keys.create_key(session, OPERATOR, world.billing.secret, world.project.id, name="unseen")
    flaky.away = True
    monotonic.advance(60)
    assert (await auth.authenticate(world.plaintext)).key_id == world.key.id
    with pytest.raises(AuthUnavailable):
        await auth.authenticate(unseen.plaintext)
    with pytest.raises(InvalidKey):
        await auth.authenticate(world.plaintext[:-1] + "0" if world.plaintext[-1] != "0" else "1")
    monotonic.advance(3_600)
    with pytest.raises(AuthUnavailable):  # an hour is as long as an old answer is believed
        await auth.authenticate(world.plaintext)


async def test_a_revocation_heard_while_sql_is_away_is_not_outlived_by_the_cache(
    sqlite_world: World, flaky: Flaky, monotonic: FakeMonotonic
) -> None:
    bus = ChangeBus(sqlite_world.billing.redis)
    auth = Authenticator(flaky, sqlite_world.billing.secret, bus=bus, monotonic=monotonic)
    await auth.authenticate(sqlite_world.plaintext)
    flaky.away = True
    bus._dispatch("key", sqlite_world.key.public_id)
    with pytest.raises(AuthUnavailable):
        await auth.authenticate(sqlite_world.plaintext)


async def test_a_missing_server_secret_version_is_our_fault_not_the_callers(sqlite_world: World) -> None:
    older = ServerSecret({1: bytes(range(32)), 2: bytes(32)})
    world = sqlite_world
    async with world.billing.db.begin() as session:
        new = await keys.create_key(session, OPERATOR, older, world.project.id, name="v2")
    with pytest.raises(AuthUnavailable):
        await world.billing.auth.authenticate(new.plaintext)


async def test_a_flood_of_bad_keys_costs_under_300_microseconds_each_and_bounded_memory(
    sqlite_world: World, flaky: Flaky
) -> None:
    import secrets

    auth = Authenticator(flaky, sqlite_world.billing.secret)
    await auth.authenticate(sqlite_world.plaintext)
    made_up = [f"sk-weir-{base32(secrets.randbits(90), 18)}-{base32(secrets.randbits(260), 52)}" for _ in range(20_000)]
    wrong_secret = sqlite_world.plaintext[:-1] + ("0" if sqlite_world.plaintext[-1] != "0" else "1")
    flood = [*made_up, *[wrong_secret] * 5_000]
    reads = flaky.reads
    started = time.process_time()
    for presented in flood:
        try:
            await auth.authenticate(presented)
        except InvalidKey:
            continue
        pytest.fail("a bad key was accepted")
    each_us = (time.process_time() - started) / len(flood) * 1e6
    assert each_us < 300
    assert flaky.reads - reads <= 5  # by tag, nothing asked SQL (5: what a 30-bit tag lets through by chance is ~0)
    assert len(auth._negative) <= MAX_NEGATIVE


async def test_lookups_of_the_same_unknown_key_are_asked_once(sqlite_world: World, flaky: Flaky) -> None:
    auth = Authenticator(flaky, sqlite_world.billing.secret)
    await asyncio.gather(*(auth.authenticate(sqlite_world.plaintext) for _ in range(50)))
    assert flaky.reads == 1


async def test_suspending_a_tenant_and_archiving_a_project_stop_its_keys(sqlite_world: World) -> None:
    world = sqlite_world
    await world.principal()
    async with world.billing.db.begin() as session:
        await tenants.update_tenant(session, OPERATOR, "acme", status=Status.SUSPENDED)
    with pytest.raises(Forbidden, match="suspended"):
        await world.principal()
    async with world.billing.db.begin() as session:
        await tenants.update_tenant(session, OPERATOR, "acme", status=Status.ACTIVE)
        await tenants.archive_project(session, OPERATOR, world.project.id)
    with pytest.raises(Forbidden, match="archived"):
        await world.principal()


async def test_last_use_is_written_in_bulk(world: World, clock: FakeClock) -> None:
    await world.principal()
    await world.principal()
    assert await world.billing.auth.flush_last_used() == 1
    async with world.billing.db.read() as session:
        key = await session.get(ApiKey, world.key.id)
    assert key is not None
    assert key.last_used_at == clock.now
    assert await world.billing.auth.flush_last_used() == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scopes", ["inference", "root"]),
        ("max_service_tier", "gold"),
        ("max_priority", 3),
        ("name", ""),
        ("name", "a\nb"),
    ],
)
async def test_a_key_with_a_field_out_of_bounds_is_refused_by_name(
    sqlite_world: World, field: str, value: object
) -> None:
    fields = {"name": "k", field: value}
    async with sqlite_world.billing.db.begin() as session:
        with pytest.raises(Invalid) as refusal:
            await keys.create_key(session, OPERATOR, sqlite_world.billing.secret, sqlite_world.project.id, **fields)  # type: ignore[arg-type]
    assert refusal.value.param == field


async def test_an_admin_makes_no_operators_key_and_a_member_none_at_all(sqlite_world: World) -> None:
    world = sqlite_world
    member = Actor(
        kind="key", id=world.key.id, role=Role.MEMBER, tenant_id=world.tenant.id, project_id=world.project.id
    )
    for actor, role in [(world.admin, Role.OPERATOR), (member, Role.MEMBER)]:
        async with world.billing.db.begin() as session:
            with pytest.raises(Forbidden):
                await keys.create_key(
                    session, actor, world.billing.secret, world.project.id, name="k", role=role, scopes=[Scope.ADMIN]
                )


async def test_rotating_a_revoked_key_and_keys_of_archived_projects_conflict(sqlite_world: World) -> None:
    world = sqlite_world
    async with world.billing.db.begin() as session:
        await keys.revoke_key(session, OPERATOR, world.key.id)
        with pytest.raises(Conflict):
            await keys.rotate_key(session, OPERATOR, world.billing.secret, world.key.id)
        await tenants.archive_project(session, OPERATOR, world.project.id)
        with pytest.raises(Conflict):
            await keys.create_key(session, OPERATOR, world.billing.secret, world.project.id, name="k")


def test_the_server_secret_file_is_private_and_made_once(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    first, second = ServerSecret.load(path), ServerSecret.load(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert first.cache_salt("a", "b") == second.cache_salt("a", "b")
    path.chmod(0o644)
    with pytest.raises(Invalid, match="0600"):
        ServerSecret.load(path)


def test_salts_of_pairs_that_run_together_differ(secret: ServerSecret) -> None:
    assert secret.cache_salt("org_1", "2345") != secret.cache_salt("org_12345", "")
    assert secret.cache_salt("a", "b") != secret.cache_salt("b", "a")


def test_what_was_encrypted_opens_after_a_version_is_added_and_not_when_tampered_with(secret: ServerSecret) -> None:
    blob = secret.encrypt("sk-upstream")
    assert b"upstream" not in blob
    newer = ServerSecret({1: bytes(range(32)), 2: bytes(32)})
    assert newer.decrypt(blob) == "sk-upstream"
    assert newer.cache_salt("t", "p") == secret.cache_salt("t", "p")
    with pytest.raises(Invalid):
        ServerSecret({2: bytes(32)}).decrypt(blob)
    with pytest.raises(Invalid):
        secret.decrypt(blob[:-2] + b"xx")


@pytest.mark.parametrize("text", ["", "1:xyz", "1", "a:" + "0" * 64, "1:" + "0" * 63])
def test_a_malformed_server_secret_is_refused_without_being_echoed(text: str) -> None:
    with pytest.raises(Invalid) as refusal:
        ServerSecret.parse(text)
    assert "0000" not in str(refusal.value)


async def test_nothing_of_one_tenant_is_seen_or_touched_by_another_s_admin_or_member(world: World) -> None:
    """Every service that takes an id is tried with a foreign tenant's, by every role that is not the operator's."""
    from billing.limits import rules
    from billing.reports.registry import REPORTS
    from billing.reports.report import ReportQuery

    billing = world.billing
    async with billing.db.begin() as session:
        foreign = await tenants.create_tenant(session, OPERATOR, slug="globex")
        project = await tenants.create_project(session, OPERATOR, foreign.id, name="Secret")
        key = (await keys.create_key(session, OPERATOR, billing.secret, project.id, name="k")).key
    for role in (Role.ADMIN, Role.MEMBER):
        actor = Actor(kind="key", id=world.key.id, role=role, tenant_id=world.tenant.id, project_id=world.project.id)
        async with billing.db.begin() as session:
            acts = [
                lambda s=session, a=actor: tenants.get_tenant(s, a, foreign.id),
                lambda s=session, a=actor: tenants.get_tenant(s, a, "globex"),
                lambda s=session, a=actor: tenants.update_tenant(s, a, foreign.id, name="mine"),
                lambda s=session, a=actor: tenants.create_project(s, a, foreign.id, name="p"),
                lambda s=session, a=actor: tenants.get_project(s, a, project.id),
                lambda s=session, a=actor: tenants.get_project(s, a, "secret", tenant=foreign.id),
                lambda s=session, a=actor: tenants.list_projects(s, a, tenant_id=foreign.id),
                lambda s=session, a=actor: tenants.update_project(s, a, project.id, name="x"),
                lambda s=session, a=actor: tenants.archive_project(s, a, project.id),
                lambda s=session, a=actor: keys.create_key(s, a, billing.secret, project.id, name="k"),
                lambda s=session, a=actor: keys.get_key(s, a, key.id),
                lambda s=session, a=actor: keys.list_keys(s, a, tenant_id=foreign.id),
                lambda s=session, a=actor: keys.update_key(s, a, key.id, name="x"),
                lambda s=session, a=actor: keys.rotate_key(s, a, billing.secret, key.id),
                lambda s=session, a=actor: keys.revoke_key(s, a, key.id),
                lambda s=session, a=actor: rules.set_limit(
                    s, a, scope_kind="key", scope_id=key.id, quota="rpm", hard=1
                ),
                lambda s=session, a=actor: rules.list_limits(s, a, tenant=foreign.id),
                *[
                    lambda s=session, a=actor, r=report: r.run(s, a, ReportQuery(tenant_id=foreign.id))
                    for report in REPORTS.values()
                ],
            ]
            for act in acts:
                with pytest.raises((NotFound, Forbidden)) as refusal:
                    await act()
                assert "globex" not in str(refusal.value).replace("'globex'", "")  # an echo of what was asked is fine
            assert [t.slug for t in await tenants.list_tenants(session, actor)] == ["acme"]
            assert [p.tenant_id for p in await tenants.list_projects(session, actor)] == [world.tenant.id]
            assert {k.tenant_id for k in await keys.list_keys(session, actor)} == {world.tenant.id}


async def test_every_act_is_in_the_audit_log_with_its_actor(world: World) -> None:
    async with world.billing.db.begin() as session:
        await keys.update_key(session, world.admin, world.key.id, name="renamed")
        await keys.revoke_key(session, world.admin, world.key.id)
    async with world.billing.db.read() as session:
        events = await list_events(session, world.admin)
        actions = [(e.action, e.actor_id) for e in events]
        page = await list_events(session, world.admin, limit=1, after=events[0].id)
    assert actions[:2] == [("api_key.deleted", world.key.id), ("api_key.updated", world.key.id)]
    assert ("project.created", "test") in actions
    assert [e.id for e in page] == [events[1].id]
    assert issubclass(InvalidKey, BillingError)


@pytest.mark.parametrize(
    ("more", "param"), [({"max_service_tier": "priority"}, "max_service_tier"), ({"max_priority": 0}, "max_priority")]
)
async def test_no_key_may_have_more_than_its_tenant_and_only_an_operator_says_how_much_that_is(
    sqlite_world: World, more: dict[str, Any], param: str
) -> None:
    world, secret = sqlite_world, sqlite_world.billing.secret
    # given a tenant as it is made: then neither its admin nor anybody makes such a key, or makes one of another
    for actor in (world.admin, OPERATOR):
        async with world.billing.db.begin() as session:
            with pytest.raises(Invalid, match="the most that tenant 'acme' may give") as refused:
                await keys.create_key(session, actor, secret, world.project.id, name="fast", **more)
            assert refused.value.param == param
            with pytest.raises(Invalid, match="the most that tenant 'acme' may give"):
                await keys.update_key(session, actor, world.key.id, **more)
    async with world.billing.db.begin() as session:
        with pytest.raises(Forbidden):
            await tenants.update_tenant(session, world.admin, "acme", **more)
    # when the operator allows it, then its admin may, until it is taken away again: that is in force over the key
    async with world.billing.db.begin() as session:
        await tenants.update_tenant(session, OPERATOR, "acme", **more)
        made = await keys.create_key(session, world.admin, secret, world.project.id, name="fast", **more)
    assert getattr(await world.billing.auth.authenticate(made.plaintext), param) == more[param]
    async with world.billing.db.begin() as session:
        await tenants.update_tenant(session, OPERATOR, "acme", max_service_tier="default", max_priority=1)
    later = Authenticator(world.billing.db, secret)
    assert getattr(await later.authenticate(made.plaintext), param) == {"max_service_tier": "default"}.get(param, 1)


@pytest.mark.parametrize(
    "odd",
    ["a\nb", "a\x00", "\x1b[31m", "a\x7fb", "a\x9bb", "a\u2028b", "evil\u202etxt.exe", "\u2066x", "\ufeffx", "\ud800"],
)
async def test_what_a_terminal_would_obey_is_no_name_and_no_tag(sqlite_world: World, odd: str) -> None:
    world = sqlite_world
    async with world.billing.db.begin() as session:
        for fields in ({"name": odd}, {"name": "n", "tags": {odd: "x"}}, {"name": "n", "tags": {"x": odd}}):
            with pytest.raises(Invalid, match=r"U\+[0-9A-F]{4} cannot be printed"):
                await keys.create_key(session, world.admin, world.billing.secret, world.project.id, **fields)
        with pytest.raises(Invalid, match="cannot be printed"):
            await keys.update_key(session, world.admin, world.key.id, name=odd)
        with pytest.raises(Invalid, match="cannot be printed"):
            await tenants.create_project(session, world.admin, "acme", name=odd)


async def test_names_of_every_script_are_names(sqlite_world: World) -> None:
    world = sqlite_world
    async with world.billing.db.begin() as session:
        for name in ("Größe", "किंमत\u200dशोध", "می\u200cخواهم", "👩\u200d🚀", "キー"):
            made = await keys.create_key(session, world.admin, world.billing.secret, world.project.id, name=name)
            assert made.key.name == name

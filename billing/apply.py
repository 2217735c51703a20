"""Bulk changes from a file: read, compare with what is in force, show the difference, then make it so.

The file (TOML or JSON) names what should be; it never deletes what it does not name, but for limits and cache
policies: a scope whose `limits` are given has those and no others, and so a tenant its `cache_policy`. Money is written
as text in USD, so that no float touches it.

    [[tenants]]
    slug = "acme"
    time_zone = "Europe/Berlin"
    limits = { rpm = 600, budget_month = { hard = "2500", soft = "2000" } }
    cache_policy = { hit_price = "25%" }
    [[tenants.projects]]
    slug = "web"
    limits = { "tpm@smollm2" = 20000 }
    [[prices]]
    model = "smollm2"
    input = "0.15"
    output = "0.60"
    [config.route.default]
    upstreams = ["local"]
"""

from __future__ import annotations

import tomllib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from billing import audit, config, prices, tenants
from billing.clock import utc_now
from billing.errors import Invalid
from billing.limits import rules
from billing.money import format_usd, parse_percent, parse_usd
from billing.principal import Actor
from billing.quotas.quota import Quota, Unit
from billing.quotas.registry import quota_named
from billing.tables import ConfigItem, Discount, LimitRule, Price, Project, Tenant

MAX_FILE_BYTES = 4 * 1024 * 1024
LimitValue = int | str | dict[str, int | str]


class ProjectSpec(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A project as it should be."""

    slug: str
    name: str | None = None
    limits: dict[str, LimitValue] | None = None


class TenantSpec(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tenant as it should be. `grace` in USD; `discounts` maps a model (or `*`) to a percentage. `cache_policy` comes
    checked: its fields are the cache's."""

    slug: str
    name: str | None = None
    time_zone: str | None = None
    grace: str | None = None
    cache_policy: dict[str, Any] | None = None
    max_service_tier: str | None = None
    max_priority: int | None = None
    limits: dict[str, LimitValue] | None = None
    projects: list[ProjectSpec] = []
    discounts: dict[str, str] = {}


class PriceSpec(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A price as it should be from now (or `effective_from`) on, in USD per million tokens."""

    model: str
    input: str
    output: str
    cached_input: str | None = None
    batch_input: str | None = None
    batch_output: str | None = None
    tenant: str | None = None
    service_tier: str = "default"
    effective_from: datetime | None = None


class Specification(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The whole file. `config` is kind -> name -> body (routes, aliases, upstreams)."""

    tenants: list[TenantSpec] = []
    prices: list[PriceSpec] = []
    config: dict[str, dict[str, dict[str, Any]]] = {}


class Difference(msgspec.Struct, frozen=True):
    """One change: `action` create, change or remove; `what` names the thing; values as a person reads them."""

    action: str
    what: str
    old: str | None
    new: str | None


class _Step(msgspec.Struct):
    difference: Difference
    act: Callable[[], Awaitable[object]]


def parse(data: bytes, *, name: str = "") -> Specification:
    """From TOML, or JSON when `name` ends in .json. Unknown fields are refused. Raises: Invalid."""
    if len(data) > MAX_FILE_BYTES:
        raise Invalid(f"file: {len(data)} bytes are more than {MAX_FILE_BYTES}", param="file")
    try:
        raw = msgspec.json.decode(data) if name.endswith(".json") else tomllib.loads(data.decode())
        return msgspec.convert(raw, Specification)
    except (msgspec.MsgspecError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise Invalid(f"file: {exc}", param="file") from exc


async def plan(session: AsyncSession, actor: Actor, spec: Specification) -> list[Difference]:
    """What `apply` would do, in its order. Operators only; changes nothing. Raises: Forbidden, Invalid."""
    return [step.difference for step in await _Planner(session, actor).steps(spec)]


async def apply(session: AsyncSession, actor: Actor, spec: Specification) -> list[Difference]:
    """Make it so within the caller's transaction: all of it or nothing. Returns what was changed.

    Raises: Forbidden, Invalid, Conflict.
    """
    steps = await _Planner(session, actor).steps(spec)
    for step in steps:
        await step.act()
    return [step.difference for step in steps]


class _Planner:
    def __init__(self, session: AsyncSession, actor: Actor) -> None:
        audit.require_operator(actor)
        self._session = session
        self._actor = actor
        self._now = utc_now()

    async def steps(self, spec: Specification) -> list[_Step]:
        steps: list[_Step] = []
        for tenant in spec.tenants:
            steps += await self._tenant(tenant)
        for price in spec.prices:
            steps += await self._price(price)
        for kind, items in spec.config.items():
            for name, body in items.items():
                steps += await self._config(kind, name, body)
        return steps

    async def _tenant(self, spec: TenantSpec) -> list[_Step]:
        tenants.check_slug(spec.slug)
        if spec.time_zone is not None:
            tenants.check_time_zone(spec.time_zone)
        tenants.check_service(spec.max_service_tier, spec.max_priority)
        existing = await self._session.scalar(sa.select(Tenant).where(Tenant.slug == spec.slug))
        grace = parse_usd(spec.grace, param="grace") if spec.grace is not None else None
        steps = []
        if existing is None:
            steps.append(self._create_tenant(spec, grace))
        else:
            steps += self._change_tenant(existing, spec, grace)
        steps += await self._limits("tenant", f"tenant {spec.slug}", existing, spec.limits, tenant=spec.slug)
        for project in spec.projects:
            steps += await self._project(existing, spec.slug, project)
        for model, percent in spec.discounts.items():
            steps += await self._discount(existing, spec.slug, "" if model == "*" else model, percent)
        return steps

    def _create_tenant(self, spec: TenantSpec, grace: int | None) -> _Step:
        async def act() -> object:
            return await tenants.create_tenant(
                self._session,
                self._actor,
                slug=spec.slug,
                name=spec.name,
                time_zone=spec.time_zone or "UTC",
                grace_nano_usd=grace or 0,
                cache_policy=spec.cache_policy,
                max_service_tier=spec.max_service_tier or "default",
                max_priority=1 if spec.max_priority is None else spec.max_priority,
            )

        return _Step(Difference("create", f"tenant {spec.slug}", None, spec.name or spec.slug), act)

    def _change_tenant(self, existing: Tenant, spec: TenantSpec, grace: int | None) -> list[_Step]:
        wanted: dict[str, Any] = {
            "name": spec.name,
            "time_zone": spec.time_zone,
            "grace_nano_usd": grace,
            "cache_policy": spec.cache_policy,
            "max_service_tier": spec.max_service_tier,
            "max_priority": spec.max_priority,
        }
        changes = {k: v for k, v in wanted.items() if v is not None and v != getattr(existing, k)}
        steps = []
        for field, value in changes.items():
            old, new = getattr(existing, field), value
            if field == "grace_nano_usd":
                old, new = format_usd(int(old)), format_usd(int(str(new)))
            elif field == "cache_policy":
                old, new = (msgspec.json.encode(each).decode() for each in (old, new))

            async def act(field: str = field, value: object = value) -> object:
                fields: dict[str, Any] = {field: value}
                return await tenants.update_tenant(self._session, self._actor, spec.slug, **fields)

            steps.append(_Step(Difference("change", f"tenant {spec.slug} {field}", str(old), str(new)), act))
        return steps

    async def _project(self, tenant: Tenant | None, tenant_slug: str, spec: ProjectSpec) -> list[_Step]:
        tenants.check_slug(spec.slug)
        existing = None
        if tenant is not None:
            existing = await self._session.scalar(
                sa.select(Project).where(Project.tenant_id == tenant.id, Project.slug == spec.slug)
            )
        what = f"project {tenant_slug}/{spec.slug}"
        steps = []
        if existing is None:

            async def create() -> object:
                return await tenants.create_project(
                    self._session, self._actor, tenant_slug, name=spec.name or spec.slug, slug=spec.slug
                )

            steps.append(_Step(Difference("create", what, None, spec.name or spec.slug), create))
        elif spec.name is not None and spec.name != existing.name:
            name = spec.name

            async def rename() -> object:
                return await tenants.update_project(self._session, self._actor, existing.id, name=name)

            steps.append(_Step(Difference("change", f"{what} name", existing.name, spec.name), rename))
        steps += await self._limits("project", what, existing, spec.limits, tenant=tenant_slug, project=spec.slug)
        return steps

    async def _limits(
        self,
        kind: str,
        what: str,
        existing: Tenant | Project | None,
        wanted: dict[str, LimitValue] | None,
        *,
        tenant: str,
        project: str | None = None,
    ) -> list[_Step]:
        """The scope may not exist before an earlier step ran: its id is looked up when a step acts."""
        if wanted is None:
            return []
        have: dict[str, LimitRule] = {}
        if existing is not None:
            query = sa.select(LimitRule).where(LimitRule.scope_kind == kind, LimitRule.scope_id == existing.id)
            have = {_limit_name(rule): rule for rule in await self._session.scalars(query)}
        steps = []
        for name, value in wanted.items():
            hard, soft = _limit_values(name, value)
            rule = have.pop(name, None)
            if rule is not None and (rule.hard, rule.soft) == (hard, soft):
                continue
            old = _show_limit(name, rule.hard, rule.soft) if rule is not None else None
            difference = Difference(
                "change" if rule is not None else "create", f"{what} {name}", old, _show_limit(name, hard, soft)
            )
            steps.append(_Step(difference, self._set_limit(kind, tenant, project, name, hard=hard, soft=soft)))
        for name, rule in have.items():
            difference = Difference("remove", f"{what} {name}", _show_limit(name, rule.hard, rule.soft), None)
            steps.append(_Step(difference, self._remove_limit(kind, rule)))
        return steps

    def _set_limit(
        self, kind: str, tenant: str, project: str | None, name: str, *, hard: int | None, soft: int | None
    ) -> Callable[[], Awaitable[object]]:
        async def act() -> object:
            owner = await tenants.get_tenant(self._session, self._actor, tenant)
            scope_id = owner.id
            if project is not None:
                scope_id = (await tenants.get_project(self._session, self._actor, project, tenant=owner.id)).id
            quota, _, model = name.partition("@")
            return await rules.set_limit(
                self._session,
                self._actor,
                scope_kind=kind,
                scope_id=scope_id,
                quota=quota,
                model=model,
                hard=hard,
                soft=soft,
            )

        return act

    def _remove_limit(self, kind: str, rule: LimitRule) -> Callable[[], Awaitable[object]]:
        async def act() -> object:
            await rules.remove_limit(
                self._session,
                self._actor,
                scope_kind=kind,
                scope_id=rule.scope_id,
                quota=rule.quota,
                model=rule.model,
            )
            return None

        return act

    async def _discount(self, tenant: Tenant | None, slug: str, model: str, percent: str) -> list[_Step]:
        ppm = parse_percent(percent)
        current = None
        if tenant is not None:
            current = await self._session.scalar(
                sa.select(Discount)
                .where(Discount.tenant_id == tenant.id, Discount.model == model, Discount.effective_from <= self._now)
                .order_by(Discount.effective_from.desc())
                .limit(1)
            )
        old = current.ppm if current is not None and current.effective_to is None else None
        if old == ppm:
            return []

        async def act() -> object:
            return await prices.set_discount(self._session, self._actor, slug, ppm=ppm, model=model)

        what = f"discount {slug} {model or '*'}"
        shown = None if old is None else f"{old / 10_000:g} %"
        return [_Step(Difference("create" if old is None else "change", what, shown, f"{ppm / 10_000:g} %"), act)]

    async def _price(self, spec: PriceSpec) -> list[_Step]:
        nano: dict[str, Any] = {
            "input_nano": parse_usd(spec.input, param="input"),
            "cached_input_nano": parse_usd(spec.cached_input or spec.input, param="cached_input"),
            "output_nano": parse_usd(spec.output, param="output"),
            "batch_input_nano": parse_usd(spec.batch_input or spec.input, param="batch_input"),
            "batch_output_nano": parse_usd(spec.batch_output or spec.output, param="batch_output"),
        }
        owner = ""
        if spec.tenant is not None:
            found = await self._session.scalar(sa.select(Tenant.id).where(Tenant.slug == spec.tenant))
            owner = found or "not made yet"  # by this file: there is no price of it to compare with
        starts = spec.effective_from or self._now
        starts = starts if starts.tzinfo else starts.replace(tzinfo=UTC)
        current = await self._session.scalar(
            sa.select(Price)
            .where(
                Price.model == spec.model,
                Price.tenant_id == owner,
                Price.service_tier == spec.service_tier,
                Price.effective_from <= starts,
            )
            .order_by(Price.effective_from.desc())
            .limit(1)
        )
        in_force = current is not None and (current.effective_to is None or current.effective_to > starts)
        if in_force and all(getattr(current, name) == value for name, value in nano.items()):
            return []

        async def act() -> object:
            return await prices.set_price(
                self._session,
                self._actor,
                model=spec.model,
                tenant=spec.tenant,
                service_tier=spec.service_tier,
                effective_from=spec.effective_from and starts,
                **nano,
            )

        what = f"price {spec.model}" + (f" for {spec.tenant}" if spec.tenant else "") + f" ({spec.service_tier})"
        old = _show_price(current) if in_force and current is not None else None
        new = " / ".join(format_usd(value) for value in nano.values())
        return [_Step(Difference("create" if old is None else "change", what, old, new), act)]

    async def _config(self, kind: str, name: str, body: dict[str, Any]) -> list[_Step]:
        existing = await self._session.get(ConfigItem, (kind, name))
        if existing is not None and existing.body == body:
            return []

        async def act() -> object:
            return await config.set_item(self._session, self._actor, kind, name, body)

        old = msgspec.json.encode(existing.body).decode() if existing is not None else None
        new = msgspec.json.encode(body).decode()
        return [_Step(Difference("create" if old is None else "change", f"{kind} {name}", old, new), act)]


def _limit_name(rule: LimitRule) -> str:
    return f"{rule.quota}@{rule.model}" if rule.model else rule.quota


def _limit_values(name: str, value: LimitValue) -> tuple[int | None, int | None]:
    """(hard, soft) from `600`, `"2500"` (USD for budgets) or `{hard = …, soft = …}`."""
    quota = quota_named(name.partition("@")[0])
    if not isinstance(value, dict):
        return _amount(quota, name, value), None
    unknown = set(value) - {"hard", "soft"}
    if unknown:
        raise Invalid(f"{name}: {sorted(unknown)[0]!r} is neither hard nor soft", param=name)
    hard, soft = value.get("hard"), value.get("soft")
    return (
        _amount(quota, name, hard) if hard is not None else None,
        _amount(quota, name, soft) if soft is not None else None,
    )


def _amount(quota: Quota, name: str, value: int | str) -> int:
    if quota.unit is Unit.NANO_USD:
        return parse_usd(str(value), param=name)
    if isinstance(value, bool) or not str(value).isdigit():
        raise Invalid(f"{name}: {value!r} is not a whole number", param=name)
    return int(value)


def _show_limit(name: str, hard: int | None, soft: int | None) -> str:
    money = quota_named(name.partition("@")[0]).unit is Unit.NANO_USD
    parts = [
        f"{label} {'$' + format_usd(value) if money else value}"
        for label, value in (("hard", hard), ("soft", soft))
        if value is not None
    ]
    return ", ".join(parts)


def _show_price(price: Price) -> str:
    values = (
        price.input_nano,
        price.cached_input_nano,
        price.output_nano,
        price.batch_input_nano,
        price.batch_output_nano,
    )
    return " / ".join(format_usd(value) for value in values)

"""The four scripts as stages over a ticket: keys, arguments, and what a reply means. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from billing.errors import HoldLost, QuotaDenied
from billing.limits.policy import Rule
from billing.limits.stage import ADMIT, EXTEND, HOLD, RELEASE, RENEW, SETTLE, UNHOLD, Argument, Stage
from billing.limits.ticket import MAX_SLICE_TOKENS, Admitted, Extended, Held, HoldTerms, RateInfo, Ticket

LEASE_S = 15.0
HEARTBEAT_S = 3.0
SETTLED_MARK_S = 300
_LEASE_US = int(LEASE_S * 1_000_000)


class NeedsSeed(Exception):
    """Some budgets have no counter yet: sum the ledger, seed, and run the stage again."""

    def __init__(self, which: Sequence[int]) -> None:
        super().__init__(f"budgets {list(which)} have no counter")
        self.which = which


class Settled(msgspec.Struct, frozen=True):
    """`fresh` False: it was settled before. `used` is each budget's counter now, None where it has none."""

    fresh: bool
    used: tuple[int | None, ...]


def admit_stage(ticket: Ticket) -> Stage[Admitted]:
    """Requests per minute and day, and concurrency. Raises on parse: QuotaDenied."""
    rates, leases = ticket.policy.admit_rates, ticket.policy.leases
    arguments: list[Argument] = [ticket.request_id, len(rates), len(leases), _LEASE_US]
    for rule in rates:
        arguments += (rule.capacity, rule.period_us, int(rule.hard is not None))
    arguments += (rule.capacity for rule in leases)

    def parse(reply: list[Any]) -> Admitted:
        if reply[0] == 0:
            raise _denied(reply, rates, leases, ())
        ticket.admitted = True
        _note_soft(ticket, rates, reply[1:])
        return Admitted(_tightest(rates, reply[1:]))

    return Stage(ADMIT, [rule.key for rule in (*rates, *leases)], arguments, parse)


def hold_stage(ticket: Ticket, terms: HoldTerms) -> Stage[Held]:
    """Tokens and money. A refusal gives back what admitting took. Raises on parse: QuotaDenied, NeedsSeed."""
    ticket.terms = terms
    policy, zone = ticket.policy, ticket.principal.time_zone
    free = terms.rates.free
    ticket.budgets = (
        () if free else tuple((rule, rule.budget_key(rule.window(ticket.accepted_at, zone))) for rule in policy.budgets)
    )
    capped = any(rule.hard is not None for rule, _ in ticket.budgets)
    granted = min(terms.slice_tokens, terms.max_output_tokens) if capped else terms.max_output_tokens
    amount, tokens, rates = terms.amount_nano(granted), terms.tokens, ticket.token_rates
    admitted = () if ticket.degraded else policy.admit_rates  # Redis took none of them: it has none to give back
    keys = [ticket.hold_key, ticket.holds_key, *(r.key for r in rates), *(key for _, key in ticket.budgets)]
    keys += [r.key for r in (*admitted, *policy.leases)]
    arguments: list[Argument] = [
        ticket.request_id,
        len(rates),
        len(ticket.budgets),
        len(admitted),
        len(policy.leases),
        _LEASE_US,
        tokens,
        str(amount),
        granted,
        ticket.meta(),
    ]
    for rule in rates:
        arguments += (rule.capacity, rule.period_us, int(rule.hard is not None))
    arguments += ("" if rule.hard is None else str(rule.hard) for rule, _ in ticket.budgets)
    for rule in admitted:
        arguments += (rule.capacity, rule.period_us)

    def parse(reply: list[Any]) -> Held:
        if reply[0] == 2:
            raise NeedsSeed([index - 1 for index in reply[1:]])
        if reply[0] == 0:
            ticket.admitted, ticket.ended = False, True
            raise _denied(reply, rates, (), tuple(rule for rule, _ in ticket.budgets), ticket)
        ticket.holding = True
        ticket.held_nano, ticket.held_tokens, ticket.granted_output_tokens = amount, tokens, reply[1]
        _note_soft(ticket, rates, reply[2:])
        return Held(reply[1], _tightest(rates, reply[2:]))

    return Stage(HOLD, keys, arguments, parse)


def extend_stage(ticket: Ticket, want_tokens: int) -> Stage[Extended]:
    """Heartbeat, and `want_tokens` more output where the budgets have room. Raises on parse: HoldLost, NeedsSeed."""
    terms = ticket.terms
    assert terms is not None
    leases = ticket.policy.leases
    steps = _steps(min(want_tokens, terms.max_output_tokens - ticket.granted_output_tokens))
    keys = [ticket.hold_key, ticket.holds_key, *(r.key for r in leases), *(key for _, key in ticket.budgets)]
    arguments: list[Argument] = [
        ticket.request_id,
        len(leases),
        len(ticket.budgets),
        _LEASE_US,
        ticket.prompt_done,
        ticket.cached,
        ticket.output,
        str(ticket.held_nano),
        ticket.held_tokens,
        ticket.granted_output_tokens,
        ticket.meta(),
        len(steps),
    ]
    for tokens in steps:
        arguments += (tokens, str(terms.rates.hold_output(tokens, batch=terms.batch)))
    arguments += ("" if rule.hard is None else str(rule.hard) for rule, _ in ticket.budgets)

    def parse(reply: list[Any]) -> Extended:
        if reply[0] == 2:
            raise NeedsSeed([index - 1 for index in reply[1:]])
        if reply[0] == 0:
            ticket.holding = False
            raise HoldLost(f"the hold of request {ticket.request_id} is gone")
        ticket.granted_output_tokens, ticket.at_end = reply[1], reply[2] == 1
        ticket.held_nano = int(reply[3])
        return Extended(reply[1], ticket.at_end)

    return Stage(EXTEND, keys, arguments, parse)


def settle_stage(ticket: Ticket, *, amount_nano: int, tokens: int, booked_ago_s: float = 0.0) -> Stage[Settled]:
    """Release hold and leases; the exact amount counts instead. Queue it with the cache's store: one trip."""
    leases, rates = ticket.policy.leases, ticket.token_rates
    return settle_keys(
        request_id=ticket.request_id,
        hold=ticket.hold_key,
        holds=ticket.holds_key,
        leases=[r.key for r in leases],
        budgets=[key for _, key in ticket.budgets],
        token_rates=[(r.key, r.capacity, r.period_us) for r in rates],
        amount_nano=amount_nano,
        tokens=tokens,
        booked_ago_s=booked_ago_s,
    )


def settle_keys(
    *,
    request_id: str,
    hold: str,
    holds: str,
    leases: Sequence[str],
    budgets: Sequence[str],
    token_rates: Sequence[tuple[str, int, int]],
    amount_nano: int,
    tokens: int,
    booked_ago_s: float,
) -> Stage[Settled]:
    """As `settle_stage`, for the reaper, who has a hold's meta and no ticket."""
    arguments: list[Argument] = [
        request_id,
        len(leases),
        len(budgets),
        len(token_rates),
        str(amount_nano),
        tokens,
        int(booked_ago_s * 1_000_000),
        SETTLED_MARK_S * 1000,
    ]
    for _, capacity, period_us in token_rates:
        arguments += (capacity, period_us)

    def parse(reply: list[Any]) -> Settled:
        return Settled(reply[0] != 0, tuple(int(used) if used not in (b"", "") else None for used in reply[1:]))

    return Stage(SETTLE, [hold, holds, *leases, *budgets, *(key for key, _, _ in token_rates)], arguments, parse)


def release_stage(ticket: Ticket, *, give_back: bool) -> Stage[None]:
    """Leases dropped without a hold; `give_back`: the request does not count against its rates."""
    leases, rates = ticket.policy.leases, ticket.policy.admit_rates
    arguments: list[Argument] = [ticket.request_id, len(leases), len(rates), int(give_back)]
    for rule in rates:
        arguments += (rule.capacity, rule.period_us)
    return Stage(RELEASE, [rule.key for rule in (*leases, *rates)], arguments, lambda _: None)


def unhold_stage(ticket: Ticket) -> Stage[int]:
    """The hold's money given back; the request goes on and may hold anew. 0 where there was no open hold."""
    keys = [ticket.hold_key, ticket.holds_key, *(key for _, key in ticket.budgets)]
    return Stage(UNHOLD, keys, [ticket.request_id, SETTLED_MARK_S * 1000], int)


def renew_stage(ticket: Ticket) -> Stage[None]:
    """The heartbeat of a request that has no hold yet."""
    return Stage(RENEW, [rule.key for rule in ticket.policy.leases], [ticket.request_id, _LEASE_US], lambda _: None)


def next_slice(ticket: Ticket) -> int:
    """How much more output to ask for: as much as is granted already, within bounds; 0 while there is no need."""
    if not ticket.needs_extension or ticket.terms is None:
        return 0
    return max(ticket.terms.slice_tokens, min(ticket.granted_output_tokens, MAX_SLICE_TOKENS))


def _steps(want: int) -> list[int]:
    """`want`, then powers of two below it down to 1: whatever the budget has left is found to the token."""
    if want <= 0:
        return []
    steps, power = [want], 1 << (want.bit_length() - 1)
    while power:
        steps.append(power)
        power >>= 1
    return steps


def _note_soft(ticket: Ticket, rules: Sequence[Rule], pairs: Sequence[int]) -> None:
    """Remember the rates whose soft limit this request reached, for the alerts."""
    for i, rule in enumerate(rules):
        if rule.soft is not None and rule.capacity - pairs[2 * i] >= rule.soft:
            ticket.soft_reached.append(rule)


def _tightest(rules: Sequence[Rule], pairs: Sequence[int]) -> RateInfo | None:
    """The rate with the smallest share left: what the headers show."""
    infos = [
        RateInfo(rule.capacity, pairs[2 * i], pairs[2 * i + 1] / 1_000_000)
        for i, rule in enumerate(rules)
        if rule.hard is not None
    ]
    return min(infos, key=lambda info: info.remaining / max(info.limit, 1)) if infos else None


def _denied(
    reply: list[Any],
    rates: Sequence[Rule],
    leases: Sequence[Rule],
    budgets: Sequence[Rule],
    ticket: Ticket | None = None,
) -> QuotaDenied:
    kind = reply[1].decode() if isinstance(reply[1], bytes) else reply[1]
    rule = {"rate": rates, "lease": leases, "budget": budgets}[kind][reply[2] - 1]
    wait_us = reply[3]
    wait: float | None = None if wait_us < 0 else wait_us / 1_000_000
    if kind == "budget":
        assert ticket is not None
        window = rule.window(ticket.accepted_at, ticket.principal.time_zone)
        wait = max(1.0, math.ceil((window.end - ticket.accepted_at).total_seconds()))
    return denied(rule, wait)


def denied(rule: Rule, wait_s: float | None, *, degraded: bool = False) -> QuotaDenied:
    """A refusal that names scope and limit but no amounts: those are for admins."""
    model = f" for {rule.model}" if rule.model else ""
    return QuotaDenied(
        f"the {rule.scope}'s limit on {rule.quota.title}{model} is reached",
        scope=rule.scope,
        limit=rule.quota.name,
        model=rule.model,
        retry_after_s=wait_s,
        money=rule.quota.window != "",
        too_large=wait_s is None,
        degraded=degraded,
    )

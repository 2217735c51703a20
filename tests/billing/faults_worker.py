"""A process that bills requests until it is killed: run by the fault tests as `python -m tests.billing.faults_worker`.

Prints one line a request whose end a client would have seen, after booking and before settling: what must be in the
ledger exactly once whatever is killed.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

from redis.asyncio import Redis

from billing.entry import Entry
from billing.errors import QuotaDenied, Unavailable
from billing.limits import stages
from billing.limits.ticket import HoldTerms, Ticket
from billing.prices import TokenCounts
from billing.secrets import ServerSecret
from billing.service import Billing, BillingSettings


async def request(billing: Billing, plaintext: str, request_id: str, chance: random.Random) -> Entry | None:
    """One request of random length in random steps; None when refused."""
    principal = await billing.auth.authenticate(plaintext)
    ticket = await billing.admission.open(principal, "m", request_id)
    await billing.admission.admit(ticket)
    rates = await billing.prices.rates(principal.tenant_id, "m")
    wanted = chance.randrange(1, 400)
    await billing.admission.hold(
        ticket, HoldTerms(prompt_tokens=10, max_output_tokens=wanted, rates=rates, slice_tokens=50)
    )
    await stream(billing, ticket, wanted, chance)
    if ticket.lost:
        return None
    entry = Entry.priced(
        request_id=request_id,
        principal=principal,
        endpoint="chat",
        model="m",
        accepted_at=ticket.accepted_at,
        tokens=TokenCounts.of(prompt_tokens=10, completion_tokens=ticket.output),
        rates=rates,
    )
    await billing.ledger.book(entry)
    sys.stdout.write(f"{request_id} {entry.amount_nano_usd}\n")
    sys.stdout.flush()
    await billing.admission.settle(ticket, amount_nano=entry.amount_nano_usd, tokens=entry.total_tokens)
    return entry


async def stream(billing: Billing, ticket: Ticket, wanted: int, chance: random.Random) -> None:
    """Tokens in steps, extended ahead of need, cut where a budget ends."""
    produced = 0
    while produced < wanted and not ticket.lost:
        produced = min(wanted, produced + chance.randrange(1, 40), ticket.granted_output_tokens)
        ticket.note(prompt_tokens=10, output_tokens=produced)
        await asyncio.sleep(chance.random() * 0.01)
        if ticket.needs_extension:
            await billing.admission.extend(ticket)
        if ticket.at_end and produced >= ticket.granted_output_tokens:
            return


async def main(database_url: str, socket: str, folder: str, name: str, plaintext: str) -> None:
    """Four requests at a time, for ever."""
    stages.HEARTBEAT_S = 0.1
    redis = Redis(unix_socket_path=socket)
    settings = BillingSettings(database_url=database_url, journal=Path(folder))
    billing = Billing(settings, redis, ServerSecret({1: bytes(range(32))}))
    await billing.start()
    chance = random.Random(os.getpid())

    async def loop(slot: int) -> None:
        for i in range(10**9):
            try:
                await request(billing, plaintext, f"{name}-{slot}-{i}", chance)
            except (Unavailable, QuotaDenied, stages.HoldLost):
                await asyncio.sleep(0.02)

    await asyncio.gather(*(loop(slot) for slot in range(4)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

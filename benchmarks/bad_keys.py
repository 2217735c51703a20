"""What a flood of bad keys costs one gateway: processor time of its process for each request refused over HTTP.

    python -m benchmarks.bad_keys --requests 20000

One gateway process with everything on (as in `gateway_overhead`); 16 connections ask back to back with keys made up in
our form, with the right public id and another secret, and with no form at all. Beside it what a request with a good key
costs. Processor time is the process's own, user and system, so that a busy host does not blur it. The bar: under 0.3
ms for each kind.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import shutil
import tempfile
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import results_file
from benchmarks.gateway_overhead import System, stub, weir
from benchmarks.ledger_reports import cpu_s
from benchmarks.load import Connection, build_request

RESULTS = results_file.FOLDER / "bad_keys.csv"
COLUMNS = ("date", "commit", "load", "kind", "requests", "cpu_us_each")
BAR_US = 300
PROMPT = "Question {n}: what is the capital of France?"
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def kinds(good: str) -> dict[str, tuple[Callable[[], str], int]]:
    """What is presented, and the status it must get."""

    def any_of(length: int) -> str:
        return "".join(secrets.choice(ALPHABET) for _ in range(length))

    head, public_id, secret = good.rsplit("-", 2)
    return {
        "good": (lambda: good, 200),
        "made up": (lambda: f"{head}-{any_of(len(public_id))}-{any_of(len(secret))}", 401),
        "wrong secret": (lambda: f"{head}-{public_id}-{any_of(len(secret))}", 401),
        "no form": (lambda: any_of(40), 401),
    }


async def flood(system: System, present: Callable[[], str], expected: int, requests: int) -> None:
    """Raises: SystemExit for an answer with another status."""
    parts = urllib.parse.urlsplit(system.url)
    numbers = iter(range(requests))

    async def client() -> None:
        connection = Connection(parts.hostname or "", parts.port or 80)
        for number in numbers:
            request = build_request(system.url, present(), "stub", number, PROMPT, {})
            status, body = await connection.ask(request)
            if status != expected:
                raise SystemExit(f"{status} in place of {expected}: {body[:300]!r}")
        connection.close()

    await asyncio.gather(*(client() for _ in range(16)))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000, help="of each kind")
    parser.add_argument("--dry-run", action="store_true", help="append no row")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="weir-bench-"))
    rows: list[dict[str, Any]] = []
    with stub(folder, 0) as upstream, weir(folder, upstream, semantic=False) as system:
        assert system.process is not None
        for kind, (present, expected) in kinds(system.key).items():
            uvloop.run(flood(system, present, expected, 200))  # warm
            before = cpu_s(system.process.pid)
            uvloop.run(flood(system, present, expected, options.requests))
            each_us = (cpu_s(system.process.pid) - before) / options.requests * 1e6
            load = f"{os.getloadavg()[0]:.1f}"
            rows.append({"load": load, "kind": kind, "requests": options.requests, "cpu_us_each": round(each_us, 1)})
            print(rows[-1], flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    if not options.dry_run:
        results_file.append(RESULTS, COLUMNS, rows)
    if any(row["cpu_us_each"] >= BAR_US for row in rows if row["kind"] != "good"):
        raise SystemExit(f"a bad key costs {BAR_US} us or more")


if __name__ == "__main__":
    main()

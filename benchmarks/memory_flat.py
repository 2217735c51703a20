"""Whether one gateway's memory stays flat: resident bytes by the number of requests answered.

    python -m benchmarks.memory_flat --requests 200000

One gateway process with everything on (as in `gateway_overhead`) before a stub without delay; keep-alive connections
ask back to back, every prompt another, so that the answer cache, the limits' counters, the ledger and its journal all
work. One request in `--abort-every` closes its connection without reading the answer. Memory is the gateway's own
process, its Valkey and PostgreSQL apart. The end is compared with the mean after `--warm` requests, when caches and
pools have filled: a growth above `--bound` is an error.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import results_file
from benchmarks.gateway_overhead import System, stub, weir
from benchmarks.load import Connection, build_request

RESULTS = results_file.FOLDER / "memory_flat.csv"
COLUMNS = ["date", "commit", "requests", "aborted", "errors", "seconds", "rss_mb"]
PROMPT = "Question {n}: what is the capital of France?"


def rss_mb(pid: int) -> float:
    """Resident memory of one process, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Run:
    """The clients' shared counts and the samples."""

    def __init__(self, system: System, options: argparse.Namespace) -> None:
        assert system.process is not None
        self._system, self._options, self._pid = system, options, system.process.pid
        self._numbers = iter(range(options.requests))
        self._begun = time.perf_counter()
        self.answered = self.aborted = self.errors = 0
        self.first_error = ""
        self.rows: list[dict[str, Any]] = []

    async def go(self) -> None:
        self._sample()
        await asyncio.gather(*(self._client() for _ in range(self._options.connections)))
        await asyncio.sleep(2)  # what is settled and stored behind the answers
        self._sample()

    async def _client(self) -> None:
        url, key = self._system.url, self._system.key
        parts = urllib.parse.urlsplit(url)
        connection = Connection(parts.hostname or "", parts.port or 80)
        for number in self._numbers:
            request = build_request(url, key, "stub", number, PROMPT, {})
            if self._options.abort_every and number % self._options.abort_every == self._options.abort_every - 1:
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
                writer.write(request)
                await writer.drain()
                writer.close()
                self.aborted += 1
            else:
                await self._ask(connection, request)
            done = self.answered + self.aborted + self.errors
            if done % self._options.every == 0:
                self._sample()
        connection.close()

    async def _ask(self, connection: Connection, request: bytes) -> None:
        try:
            status, body = await connection.ask(request)
        except (OSError, asyncio.IncompleteReadError) as exc:
            connection.close()
            status, body = 0, repr(exc).encode()
        if status == 200:
            self.answered += 1
        else:
            self.errors += 1
            self.first_error = self.first_error or f"{status} {body[:300]!r}"

    def _sample(self) -> None:
        row = {
            "requests": self.answered + self.aborted + self.errors,
            "aborted": self.aborted,
            "errors": self.errors,
            "seconds": round(time.perf_counter() - self._begun, 1),
            "rss_mb": round(rss_mb(self._pid), 1),
        }
        self.rows.append(row)
        print(row, flush=True)


def growth(rows: list[dict[str, Any]], warm: int) -> float | None:
    """The last tenth of the samples over the first tenth after `warm` requests, less one; None for too few samples."""
    after = [row["rss_mb"] for row in rows if row["requests"] >= warm]
    tenth = max(1, len(after) // 10)
    return None if len(after) < 2 else statistics.mean(after[-tenth:]) / statistics.mean(after[:tenth]) - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--every", type=int, default=1000, help="requests between two samples")
    parser.add_argument("--abort-every", type=int, default=50, help="0: never")
    parser.add_argument("--warm", type=int, default=40_000)
    parser.add_argument("--bound", type=float, default=0.05)
    parser.add_argument("--dry-run", action="store_true", help="append no rows")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="weir-bench-"))
    with stub(folder, 0) as upstream, weir(folder, upstream, semantic=False) as system:
        run = Run(system, options)
        uvloop.run(run.go())
    shutil.rmtree(folder, ignore_errors=True)
    if not options.dry_run:
        results_file.append(RESULTS, COLUMNS, run.rows)
    if run.errors:
        print(f"{run.errors} errors, first {run.first_error}", file=sys.stderr)
    grown = growth(run.rows, options.warm)
    if grown is None:
        print(f"too few requests to say: memory is compared from {options.warm} on")
        return
    print(f"from {options.warm} to {options.requests} requests: {grown:+.1%}")
    if grown > options.bound:
        raise SystemExit(f"memory grew by more than {options.bound:.0%}")


if __name__ == "__main__":
    main()

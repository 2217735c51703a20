"""What prompts of 100,000 tokens in flight do to the small requests beside them.

    python -m benchmarks.long_prompts --seconds 20

One gateway process with everything on (as in `gateway_overhead`) before a stub that answers after 50 ms. Small requests
come in open loop at `--rate` a second, alone and then while `--long` clients send chats of 100,000 tokens back to back;
a latency counts from when a request should have been sent, so that a gateway that stands still cannot hide it. Each
pair is repeated, and the rows hold the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import results_file
from benchmarks.gateway_overhead import ROOT, System, load, stub, weir
from benchmarks.load import Connection

RESULTS = results_file.FOLDER / "long_prompts.csv"
COLUMNS = ["date", "commit", "rate", "long_clients", "long_tokens", "long_rps", "long_p50_ms", "p50_ms", "p99_ms"]
COLUMNS += ["alone_p50_ms", "alone_p99_ms"]
WORDS = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split()
TOKENS_A_WORD = 2.09  # of the packaged tokenizer, in this text


def long_text(num_tokens: int) -> str:
    """English prose in random order, about `num_tokens` of them."""
    chance = random.Random(1)
    return " ".join(chance.choices(WORDS, k=int(num_tokens / TOKENS_A_WORD)))


async def _ask_long(url: str, key: str, text: str, clients: int, seconds: float) -> dict[str, Any]:
    """Clients that send the long chat back to back, each with another first word, so that no cache can answer."""
    parts = urllib.parse.urlsplit(url)
    latencies: list[float] = []
    failed: list[str] = []
    begun = time.perf_counter()

    async def client(number: int) -> None:
        connection = Connection(parts.hostname or "", parts.port or 80)
        turn = 0
        while time.perf_counter() - begun < seconds:
            message = {"role": "user", "content": f"{number} {turn} {text}"}
            body = json.dumps({"model": "stub", "max_tokens": 16, "messages": [message]}).encode()
            head = (
                f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\nauthorization: Bearer {key}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            asked = time.perf_counter()
            status, answer = await connection.ask(head.encode() + body)
            latencies.append((time.perf_counter() - asked) * 1000)
            if status != 200:
                failed.append(f"{status} {answer[:200]!r}")
                return
            turn += 1
        connection.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    return {
        "rps": len(latencies) / (time.perf_counter() - begun),
        "p50_ms": statistics.median(latencies) if latencies else None,
        "failed": failed,
    }


def _start_long(system: System, options: argparse.Namespace) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "benchmarks.long_prompts", "--url", system.url, "--key", system.key]
    words += ["--long", str(options.long), "--tokens", str(options.tokens), "--seconds", str(options.seconds + 2)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _small(system: System, options: argparse.Namespace) -> dict[str, Any]:
    """Small requests in open loop, each run with words of its own: the answer cache knows none of them."""
    prompt = f"Question {{n}} of run {time.time_ns()}: what is the capital of France?"
    report = load(system, "open", rate=options.rate, seconds=options.seconds, prompt=prompt)
    if report["errors"]:
        raise SystemExit(f"{report['errors']} small requests failed: {report['first_error']}")
    return report


def measure(system: System, options: argparse.Namespace) -> dict[str, Any]:
    """One pair: the small requests alone, and beside the long ones."""
    alone = _small(system, options)
    sender = _start_long(system, options)
    time.sleep(1.0)
    beside = _small(system, options)
    long = json.loads(sender.communicate()[0])
    if long["failed"]:
        raise SystemExit(f"a long prompt failed: {long['failed'][0]}")
    return {
        "long_rps": long["rps"],
        "long_p50_ms": long["p50_ms"],
        "p50_ms": beside["p50_ms"],
        "p99_ms": beside["p99_ms"],
        "alone_p50_ms": alone["p50_ms"],
        "alone_p99_ms": alone["p99_ms"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--long", type=int, default=1, help="clients that send long prompts")
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--dry-run", action="store_true", help="append no row")
    parser.add_argument("--url", help=argparse.SUPPRESS)  # only send long prompts there: a process of its own
    parser.add_argument("--key", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.url:
        text = long_text(options.tokens)
        print(json.dumps(uvloop.run(_ask_long(options.url, options.key, text, options.long, options.seconds))))
        return
    folder = Path(tempfile.mkdtemp(prefix="weir-bench-"))
    with stub(folder, 50) as upstream, weir(folder, upstream, semantic=False) as system:
        load(system, "open", rate=20, seconds=3)  # warm-up
        pairs = []
        for _ in range(options.repeat):
            pairs.append(measure(system, options))
            print({name: round(value, 1) for name, value in pairs[-1].items()}, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    row = {name: round(statistics.median(pair[name] for pair in pairs), 1) for name in pairs[0]}
    finish(row, options)


def finish(row: dict[str, Any], options: argparse.Namespace) -> None:
    """Prints the medians, appends the row."""
    row |= {"rate": options.rate, "long_clients": options.long, "long_tokens": options.tokens}
    print(row)
    if not options.dry_run:
        results_file.append(RESULTS, COLUMNS, [row])


if __name__ == "__main__":
    main()

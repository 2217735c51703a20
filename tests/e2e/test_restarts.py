"""Weir ended in every way: drained, killed in the middle of a stream, started again on what it left."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openai import InternalServerError, OpenAI

from billing.limits.stages import LEASE_S
from gateway.embedded_redis import EmbeddedRedis
from tests.e2e.conftest import Weir

MANY = 100
PATIENT: dict[str, Any] = {"timeout": 250, "max_retries": 10}
# A folder that holds no model: Weir serves without an embedder, and has started 6 s of CPU sooner.
NO_EMBEDDER = {"WEIR_EMBEDDER": "none"}
QUESTION: list[Any] = [{"role": "user", "content": "Tell me a very long story about the sea."}]


def test_killed_in_a_stream_the_ledger_opens_clean_and_nothing_is_in_it_twice(tmp_path: Path) -> None:
    weir = Weir(tmp_path, env=NO_EMBEDDER)
    weir.start()
    try:
        # given one finished answer
        with weir.client() as client:
            done = client.chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=8, temperature=0)
            # when the process is killed in the middle of the next
            stream = client.chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=900, stream=True)
            for _, _chunk in zip(range(5), stream, strict=False):
                pass
            weir.stop(signal.SIGKILL)
            stream.close()
        # then the next start serves, with the same key, and the finished answer is booked once
        weir.start()
        rows = weir.cli_json("ledger", "list")
        assert [row["completion_tokens"] for row in rows if row["request_id"] == done._request_id] == [
            done.usage.completion_tokens
        ]
        places = [(row["request_id"], row["attempt"], row["kind"], row["seq"]) for row in rows]
        assert len(places) == len(set(places))
        with weir.client() as client:
            assert client.chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=4).choices
        assert weir.cli("reconcile", "--check").returncode == 0
    finally:
        weir.stop()


def _begin_many(pool: ThreadPoolExecutor, client: OpenAI, max_tokens: int) -> dict[str, Any]:
    """Streams by their requests' ids, each after its first chunk; the SDK tries again what a busy host refuses."""

    def begin(number: int) -> tuple[str, Any]:
        stream = client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": f"Count up from {number}."}], max_tokens=max_tokens,
            stream=True, extra_body={"ignore_eos": True},
        )  # fmt: skip
        next(stream)
        return stream.response.headers["x-request-id"], stream

    return dict(pool.map(begin, range(MANY)))


@pytest.mark.timeout(600)
def test_sigterm_lets_a_hundred_streams_finish_and_sends_new_requests_elsewhere(tmp_path: Path) -> None:
    weir = Weir(tmp_path, "--drain-timeout-s", "250", "--max-num-seqs", str(MANY), env=NO_EMBEDDER)
    weir.start()
    with weir.client() as client, weir.client(**PATIENT) as many, ThreadPoolExecutor(MANY) as pool:
        # given a hundred streams that have begun
        begun = _begin_many(pool, many, 24)
        # when the server is told to stop
        assert weir.process is not None
        weir.process.send_signal(signal.SIGTERM)
        # then it refuses what comes, readably, as long as it waits for them
        refusal = _refused(client)
        assert (refusal.status_code, refusal.code) == (503, "server_stopping")
        assert refusal.response.headers["connection"] == "close"
        # and each of them comes to its end
        ends = list(pool.map(lambda stream: list(stream)[-1], begun.values()))
    assert {chunk.choices[0].finish_reason for chunk in ends} == {"length"}
    assert weir.stop() == 0
    # and stands in the books, once
    rows = weir.cli_json("ledger", "list", "--limit", "1000")
    assert sorted(row["request_id"] for row in rows) == sorted(begun)
    assert {row["completion_tokens"] for row in rows} == {24}
    assert weir.cli("reconcile", "--check").returncode == 0


@pytest.mark.timeout(600)
def test_a_hundred_streams_cut_off_by_sigkill_are_in_the_books_once_each_after_the_restart(tmp_path: Path) -> None:
    # given a budget, in a Redis that outlives the gateway, and a hundred streams that have begun
    valkey = EmbeddedRedis(tmp_path / "limits")
    valkey.start()
    weir = Weir(tmp_path, "--max-num-seqs", str(MANY), env={"WEIR_REDIS_URL": valkey.url, **NO_EMBEDDER})
    weir.start()
    try:
        weir.cli("limits", "set", "budget_month", "--tenant", "demo", "--hard", "100")
        with weir.client(**PATIENT) as many, ThreadPoolExecutor(MANY) as pool:
            begun = _begin_many(pool, many, 400)
            # when the gateway is killed
            weir.stop(signal.SIGKILL)
            for stream in begun.values():
                stream.close()
        # then the next one's reaper books each of them once its lease is over, for the tokens of its last heartbeat
        weir.start()
        deadline = time.monotonic() + 8 * LEASE_S
        while len(rows := json.loads(weir.cli_here("ledger", "list", "--limit", "1000", "--json"))) < MANY:
            assert time.monotonic() < deadline, f"{len(rows)} of {MANY} are booked"
            threading.Event().wait(1.0)
        assert sorted(row["request_id"] for row in rows) == sorted(begun)
        assert {row["status"] for row in rows} == {"interrupted"}
        for row in rows:  # nothing yet where the kill came before the first heartbeat
            assert row["completion_tokens"] < 400
            assert (row["prompt_tokens"] > 0) >= (row["completion_tokens"] > 0)
        assert weir.cli("reconcile", "--check").returncode == 0
    finally:
        weir.stop()
        valkey.stop()


def _refused(client: OpenAI) -> InternalServerError:
    """The 503 that comes as soon as the signal has arrived."""
    while True:
        try:
            client.models.list()
        except InternalServerError as refused:
            return refused


def test_busy_port_and_unknown_setting_are_told_without_a_traceback(tmp_path: Path) -> None:
    import socket

    weir = Weir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = weir.cli("serve", "smollm2", "--port", str(taken.getsockname()[1]), check=False)
    assert done.returncode == 2
    assert "cannot listen" in done.stderr
    assert "Traceback" not in done.stderr
    weir.env["WEIR_PROT"] = "8000"
    done = weir.cli("tenants", "list", check=False)
    assert done.returncode == 2
    assert "did you mean 'port'?" in done.stderr


@pytest.mark.heavy
def test_second_start_is_ready_in_15_seconds(tmp_path: Path) -> None:
    weir = Weir(tmp_path)
    weir.start()
    weir.stop()
    weir.start()
    weir.stop()
    seconds = float(re.findall(r"/v1 after ([\d.]+) s", "".join(weir.output))[-1])
    assert seconds < 15

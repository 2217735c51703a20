"""A client that leaves the real server: in the queue it pays nothing, once its prompt was read what the engine made."""

from __future__ import annotations

import re
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Weir

PROMPT: list[Any] = [{"role": "user", "content": "Name the rivers of Europe, one after another. " * 20}]


def _counter(weir: Weir, name: str) -> int:
    text = httpx.get(f"{weir.base_url.removesuffix('/v1')}/metrics", timeout=60).text
    return int(float(re.findall(rf"^{re.escape(name)}\{{.*\}} (\S+)$", text, re.MULTILINE)[0]))


def _wait(weir: Weir, name: str, value: int) -> None:
    deadline = time.monotonic() + 120
    while (now := _counter(weir, name)) != value:
        assert time.monotonic() < deadline, f"{name} is {now}, not {value}"
        threading.Event().wait(0.05)


def _rows(weir: Weir, count: int) -> list[dict[str, Any]]:
    """Newest first, once there are `count`."""
    deadline = time.monotonic() + 60
    while len(rows := weir.cli_json("ledger", "list")) < count:
        assert time.monotonic() < deadline, f"{len(rows)} rows, not {count}"
        threading.Event().wait(0.2)
    return list(rows)


@pytest.mark.timeout(600)
def test_leaving_the_queue_costs_nothing_and_leaving_after_the_prompt_what_the_engine_made(tmp_path: Path) -> None:
    weir = Weir(tmp_path, "--max-num-seqs", "1", "--no-enable-prefix-caching")
    weir.start()
    try:
        with weir.client() as client:
            # given what the prompt counts, and what it costs, when it is answered whole
            whole = client.chat.completions.create(model="smollm2", messages=PROMPT, max_tokens=1)
            assert whole.usage is not None
            num_prompt = whole.usage.prompt_tokens
            made_before = _counter(weir, "vllm:generation_tokens_total")
            # when one client is in the engine, whose first frame tells that its prompt was read
            stream = client.chat.completions.create(
                model="smollm2", messages=PROMPT, max_tokens=900, stream=True, extra_body={"ignore_eos": True}
            )
            next(stream)
            # and another leaves while it waits for its turn
            host, port = weir.base_url.removeprefix("http://").removesuffix("/v1").split(":")
            body = httpx.Request("POST", "http://x", json={"model": "smollm2", "messages": PROMPT, "stream": True})
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {client.api_key}\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(body.content)}\r\n\r\n"
            with socket.create_connection((host, int(port))) as waiting:
                waiting.sendall(head.encode() + body.content)
                _wait(weir, "vllm:num_requests_waiting", 1)
            _wait(weir, "vllm:num_requests_waiting", 0)
            # and then the first leaves too
            stream.close()
            _wait(weir, "vllm:num_requests_running", 0)
        rows = _rows(weir, 3)
        by_tokens = {row["prompt_tokens"]: row for row in rows if row["status"] == "client_disconnect"}
        assert set(by_tokens) == {0, num_prompt}
        queued, left = by_tokens[0], by_tokens[num_prompt]
        assert (queued["completion_tokens"], queued["amount_nano_usd"]) == (0, 0)
        # then it pays for the prompt and what was made when it left; the engine may have been a step ahead
        made = _counter(weir, "vllm:generation_tokens_total") - made_before
        assert 1 <= left["completion_tokens"] <= made <= left["completion_tokens"] + 2
        [answered] = [row for row in rows if row["status"] == "ok"]
        assert left["amount_nano_usd"] > answered["amount_nano_usd"] > 0
        assert weir.cli("reconcile", "--check").returncode == 0
    finally:
        weir.stop()

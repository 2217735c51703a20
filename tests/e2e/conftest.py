"""The real server as a newcomer starts it: `weir serve smollm2 --demo`, in a folder of its own, once a session."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from openai import OpenAI

from gateway.cli import root

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 180.0


class Weir:
    """A running `weir serve` and the command line beside it."""

    def __init__(self, folder: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.flags = flags
        # One thread for products: on two cores the HTTP side and the embedder keep the other one busy.
        self.env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(env or {})}
        self.process: subprocess.Popen[str] | None = None
        self.output: list[str] = []

    def start(self) -> None:
        """Returns once the server says that it serves; fails with all it printed."""
        with (self.folder / "stderr.log").open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway", "serve", "smollm2", "--demo", "--port", "0", *self.flags],
                cwd=self.folder,
                env=self.env,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
            )
        assert self.process.stdout is not None
        watchdog = threading.Timer(START_TIMEOUT_S, self.process.kill)
        watchdog.start()
        try:
            for line in self.process.stdout:
                self.output.append(line)
                if "Ctrl-C ends Weir" in line:
                    return
        finally:
            watchdog.cancel()
        self.stop(signal.SIGKILL)
        pytest.fail("weir did not start:\n" + "".join(self.output) + (self.folder / "stderr.log").read_text()[-4000:])

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ends the server and returns its exit status."""
        if self.process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        status = self.process.wait(timeout=60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        return status

    @property
    def demo(self) -> dict[str, str]:
        lines = (self.folder / "var" / "demo.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))

    @property
    def base_url(self) -> str:
        return self.demo["OPENAI_BASE_URL"]

    def client(self, api_key: str | None = None, **options: Any) -> OpenAI:
        """The official SDK; no retries unless asked, so that a test sees the first answer."""
        return OpenAI(
            base_url=self.base_url, api_key=api_key or self.demo["OPENAI_API_KEY"], **{"max_retries": 0, **options}
        )

    def cli(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`weir …` in the same folder."""
        done = subprocess.run(
            [sys.executable, "-m", "gateway", *words],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, f"weir {' '.join(words)}: {done.stdout}{done.stderr}"
        return done

    def cli_here(self, *words: str) -> str:
        """`weir …` on the same data in this process, a tenth of a process's time: for what a test only builds on."""
        done = CliRunner().invoke(root, ["--data-dir", str(self.folder / "var"), *words])
        assert done.exit_code == 0, f"weir {' '.join(words)}: {done.output}{done.exception!r}"
        return done.output

    def cli_json(self, *words: str) -> Any:
        return json.loads(self.cli(*words, "--json").stdout)


@pytest.fixture(scope="session")
def weir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weir]:
    server = Weir(tmp_path_factory.mktemp("weir"))
    server.start()
    yield server
    assert server.stop() == 0

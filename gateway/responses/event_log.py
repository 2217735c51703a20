"""The events of a response that is made in the background, for everyone who reads along, from any place in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator


class EventLog:
    """Frames by their sequence numbers. Readers come and go; the work does not wait for them."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self._closed = False
        self._grown = asyncio.Event()

    def append(self, frame: bytes) -> None:
        """The frame of the next sequence number."""
        self.frames.append(frame)
        self._wake()

    def close(self) -> None:
        """Nothing more comes: readers end behind the last frame."""
        self._closed = True
        self._wake()

    async def follow(self, start: int) -> AsyncGenerator[bytes, None]:
        """Frames from number `start` on, those there and those to come."""
        number = start
        while True:
            for frame in self.frames[number:]:
                yield frame
                number += 1
            if number < len(self.frames):
                continue
            if self._closed:
                return
            await self._grown.wait()

    def _wake(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()

"""A gateway in a process of its own that works on batches until it is killed.

Arguments: data folder, Redis URL, seconds a token takes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from engine.types import Delta, EngineRequest
from gateway.app import create_app
from gateway.parts import Overrides
from gateway.settings import Settings
from tests.gateway.fakes import Script, ScriptedEngine, WordEmbedder, text_model

STEPS = ("a", "b", "c")


class SlowEngine(ScriptedEngine):
    """Every token takes its time."""

    def __init__(self, token_s: float) -> None:
        super().__init__(Script(steps=STEPS))
        self._token_s = token_s

    async def generate(self, request: EngineRequest) -> AsyncIterator[Delta]:
        async for delta in super().generate(request):
            await asyncio.sleep(self._token_s)
            yield delta


async def main(folder: str, redis_url: str, token_s: float) -> None:
    settings = Settings(data_dir=folder, redis_url=redis_url, batch_concurrency=4)
    app = create_app(settings, Overrides(engine=SlowEngine(token_s), embedder=WordEmbedder(), text_model=text_model()))
    async with app.lifespan():
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))

"""A stage: one Lua script with its keys and arguments, to be queued on anybody's pipeline or run alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, Generic, TypeVar

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from billing.errors import ScriptsFlushed
from billing.trips import Command

T = TypeVar("T")
Argument = str | bytes | int


class Script:
    """A .lua file of this package behind `common.lua`, and its SHA-1 for EVALSHA."""

    def __init__(self, name: str) -> None:
        folder = files("billing.limits") / "lua"
        self.name = name
        self.text = (folder / "common.lua").read_text() + "\n" + (folder / f"{name}.lua").read_text()
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


ADMIT, HOLD, EXTEND, SETTLE = Script("admit"), Script("hold"), Script("extend"), Script("settle")
RELEASE, RENEW, UNHOLD = Script("release"), Script("renew"), Script("unhold")
SEED, CLAIM, MOVE = Script("seed"), Script("claim"), Script("move")
SCRIPTS = (ADMIT, HOLD, EXTEND, SETTLE, RELEASE, RENEW, UNHOLD, SEED, CLAIM, MOVE)


class Stage(Generic[T]):
    """`queue` puts one EVALSHA on a non-transactional pipeline; `parse` turns its reply into a result or raises."""

    def __init__(
        self,
        script: Script,
        keys: Sequence[str],
        arguments: Sequence[Argument],
        parse: Callable[[Any], T],
    ) -> None:
        self._script = script
        self._keys = keys
        self._arguments = arguments
        self._parse = parse

    def then(self, effect: Callable[[T], None]) -> Stage[T]:
        """The same stage, which calls `effect` with every result it parses."""

        def parse(reply: Any) -> T:
            result = self._parse(reply)
            effect(result)
            return result

        return Stage(self._script, self._keys, self._arguments, parse)

    def parse(self, replies: Sequence[Any]) -> T:
        """The result. A reply may be an exception instance (raise_on_error=False): it is raised.

        Raises: ScriptsFlushed when Redis does not know the script (nothing was done: `run` once more); QuotaDenied;
        redis.exceptions.RedisError.
        """
        (reply,) = replies
        if isinstance(reply, NoScriptError):
            raise ScriptsFlushed(f"Redis does not know {self._script.name}.lua") from reply
        if isinstance(reply, BaseException):
            raise reply
        return self._parse(reply)

    @property
    def commands(self) -> list[Command]:
        """The stage's one command, for `Trips`; others may go in the same trip."""
        return [("EVALSHA", self._script.sha, len(self._keys), *self._keys, *self._arguments)]

    @property
    def loading(self) -> list[Command]:
        """As `commands`, with the script itself: for a Redis that has forgotten it."""
        return [("EVAL", self._script.text, len(self._keys), *self._keys, *self._arguments)]

    async def run(self, redis: Redis) -> T:
        """In a trip of its own, loading the script where Redis has forgotten it."""
        rest = (*self._keys, *self._arguments)
        try:
            reply = await redis.evalsha(self._script.sha, len(self._keys), *rest)
        except NoScriptError:
            reply = await redis.eval(self._script.text, len(self._keys), *rest)
        return self._parse(reply)


async def load_scripts(redis: Redis) -> None:
    """Teach Redis every script; after a restart `Stage.run` does it by itself."""
    for script in SCRIPTS:
        await redis.script_load(script.text)

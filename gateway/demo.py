"""The demo of `weir serve --demo`: a tenant, a project, prices, and a key in `data_dir/demo.env`."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import msgspec

from billing import keys, prices, tenants
from billing.auth import Authenticator
from billing.db import Database
from billing.errors import AuthError, Conflict, NotFound
from billing.principal import Actor, Scope
from billing.secrets import ServerSecret
from gateway.settings import Settings

TENANT, PROJECT, KEY = "demo", "playground", "demo"
# Example prices, USD 0.05 and 0.20 a million, the cached input at half: enough for `weir report spend` to show figures.
INPUT_NANO, CACHED_INPUT_NANO, OUTPUT_NANO = 50_000_000, 25_000_000, 200_000_000
EMBEDDING_NANO = 10_000_000


class Demo(msgspec.Struct, frozen=True):
    """What was made or found. `api_key` is printed by `greeting` only."""

    tenant: str
    project: str
    model: str
    api_key: str
    env_path: Path

    def __repr__(self) -> str:
        return f"Demo(tenant={self.tenant!r}, project={self.project!r}, model={self.model!r})"


def ensure_demo(settings: Settings) -> Demo:
    """Makes what is missing; a second start finds the first one's key again as long as it works."""
    env_path = settings.data_path / "demo.env"
    return asyncio.run(_ensure(settings, env_path, _read_key(env_path)))


async def _ensure(settings: Settings, env_path: Path, earlier_key: str | None) -> Demo:
    db = Database(settings.effective_database_url)
    model = settings.engine.served_names[0]
    try:
        secret = ServerSecret.load(settings.effective_secret_file)
        await _ensure_tenant(db)
        await _ensure_price(db, model, INPUT_NANO, CACHED_INPUT_NANO, OUTPUT_NANO)
        await _ensure_price(db, settings.embedding_model_name, EMBEDDING_NANO, EMBEDDING_NANO, 0)
        api_key = await _working_key(db, secret, earlier_key) or await _new_key(db, secret)
    finally:
        await db.close()
    return Demo(TENANT, PROJECT, model, api_key, env_path)


async def _ensure_tenant(db: Database) -> None:
    actor = Actor.operator("system", "demo")
    with contextlib.suppress(Conflict):
        async with db.begin() as session:
            await tenants.create_tenant(session, actor, slug=TENANT, name="Demo")
    with contextlib.suppress(Conflict):
        async with db.begin() as session:
            await tenants.create_project(session, actor, TENANT, name="Playground", slug=PROJECT)


async def _ensure_price(db: Database, model: str, input_nano: int, cached_input_nano: int, output_nano: int) -> None:
    actor = Actor.operator("system", "demo")
    async with db.begin() as session:
        if await prices.list_prices(session, actor, model=model):
            return
        await prices.set_price(
            session,
            actor,
            model=model,
            input_nano=input_nano,
            cached_input_nano=cached_input_nano,
            output_nano=output_nano,
        )


def _read_key(env_path: Path) -> str | None:
    with contextlib.suppress(OSError):
        for line in env_path.read_text().splitlines():
            name, _, value = line.partition("=")
            if name == "OPENAI_API_KEY":
                return value
    return None


async def _working_key(db: Database, secret: ServerSecret, api_key: str | None) -> str | None:
    if api_key is not None:
        with contextlib.suppress(AuthError):
            await Authenticator(db, secret).authenticate(api_key)
            return api_key
    return None


async def _new_key(db: Database, secret: ServerSecret) -> str:
    actor = Actor.operator("system", "demo")
    async with db.begin() as session:
        owner = await tenants.get_tenant(session, actor, TENANT)
        with contextlib.suppress(NotFound):
            made = await keys.create_key(
                session,
                actor,
                secret,
                PROJECT,
                tenant=owner.id,
                name=KEY,
                scopes=(Scope.INFERENCE, Scope.USAGE_READ),
            )
            return made.plaintext
    raise NotFound(f"the demo's project {PROJECT!r} is archived; start without --demo")


def write_env(demo: Demo, base_url: str) -> None:
    """Leaves OPENAI_BASE_URL and OPENAI_API_KEY where a shell can source them; only its owner may read the file."""
    text = f"OPENAI_BASE_URL={base_url}/v1\nOPENAI_API_KEY={demo.api_key}\n"
    draft = demo.env_path.with_suffix(".env.new")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    draft.replace(demo.env_path)


def greeting(demo: Demo, base_url: str) -> str:
    """What a newcomer types next."""
    return f"""
  OPENAI_BASE_URL={base_url}/v1
  OPENAI_API_KEY={demo.api_key}
  (also in {demo.env_path}: `set -a; . {demo.env_path}; set +a`)

Ask with curl:

  curl {base_url}/v1/chat/completions \\
    -H "Authorization: Bearer {demo.api_key}" -H "Content-Type: application/json" \\
    -d '{{"model": "{demo.model}", "temperature": 0,
         "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'

or with the OpenAI SDK, after sourcing {demo.env_path}:

  from openai import OpenAI
  stream = OpenAI().chat.completions.create(
      model="{demo.model}", temperature=0, stream=True,
      messages=[{{"role": "user", "content": "What is the capital of France?"}}])
  for chunk in stream:
      print(chunk.choices[0].delta.content or "", end="", flush=True)

Ask twice and the second answer comes from the cache. What it cost: weir report spend --by tenant,model
Ctrl-C ends Weir; what it keeps is in {demo.env_path.parent}/.
"""

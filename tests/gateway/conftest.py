"""A whole gateway over real Redis and SQLite with a scripted engine, spoken to over ASGI."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import sqlalchemy as sa
from litestar import Litestar
from litestar.datastructures import State
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncSession

from billing import db as billing_db
from billing import keys, prices, tenants
from billing.limits import rules
from billing.principal import Actor
from billing.secrets import ServerSecret
from billing.tables import LedgerEntry
from cache.shared_flight import FlightTiming
from gateway.app import equip, routed
from gateway.parts import Overrides, Parts
from gateway.settings import Settings
from tests.billing.support import ValkeyProcess, be_patient
from tests.gateway.fakes import ScriptedEngine, WordEmbedder, text_model

SECRET_NAME = Settings().effective_secret_file.name
OPERATOR = Actor.operator()
INPUT_NANO, CACHED_NANO, OUTPUT_NANO = 1_000_000_000, 100_000_000, 2_000_000_000  # $1, $0.1 and $2 a million tokens


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `be_patient`, and a gateway that stands still for seconds keeps the flights it leads."""
    be_patient(monkeypatch)
    monkeypatch.setattr("gateway.flights.FlightTiming", partial(FlightTiming, lease_s=60.0))


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyProcess]:
    """A real Valkey on a Unix socket, once a session."""
    with tempfile.TemporaryDirectory(prefix="weir-") as folder:  # a socket's path is short: not pytest's long one
        server = ValkeyProcess(Path(folder))
        server.start()
        yield server
        server.kill()


@pytest.fixture
async def redis_url(valkey: ValkeyProcess) -> str:
    """Emptied before every test."""
    client = Redis(unix_socket_path=valkey.socket)
    await client.flushall()
    await client.aclose()
    return f"unix://{valkey.socket}"


class Tenant(msgspec.Struct):
    """One tenant with a project and a key."""

    id: str
    project_id: str
    key_id: str
    key: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}


class Seed(msgspec.Struct):
    """A folder to copy: a migrated database with prices and the tenant `acme`, and its server secret."""

    folder: Path
    tenant: Tenant


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty, migrated SQLite file to copy: migrating takes longer than most tests."""
    path = tmp_path_factory.mktemp("sql") / "weir.db"
    asyncio.run(billing_db.upgrade(f"sqlite+aiosqlite:///{path}"))
    return path


@pytest.fixture(scope="session")
def seed(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Seed:
    """Made once, as every fsync takes its time."""
    folder = tmp_path_factory.mktemp("seed")
    shutil.copy(migrated, folder / "weir.db")
    return Seed(folder, asyncio.run(_sown(folder)))


async def _sown(folder: Path) -> Tenant:
    url = f"sqlite+aiosqlite:///{folder / 'weir.db'}"
    secret = ServerSecret.load(folder / SECRET_NAME)
    database = billing_db.Database(url)
    async with database.begin() as session:
        for model in ("m", "all-MiniLM-L6-v2"):
            await set_price(session, model)
        tenant = await add_tenant(session, secret, "acme")
    await database.close()
    return tenant


@pytest.fixture
def data_root() -> Iterator[Path]:
    """A folder in memory where there is one: an fsync a row is what these tests would wait for."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="weir-", dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


async def add_tenant(session: AsyncSession, secret: ServerSecret, slug: str, **key_options: Any) -> Tenant:
    """A tenant, its project and a key."""
    most = {name: key_options[name] for name in ("max_service_tier", "max_priority") if name in key_options}
    tenant = await tenants.create_tenant(session, OPERATOR, slug=slug, **most)
    project = await tenants.create_project(session, OPERATOR, tenant.id, name="App")
    made = await keys.create_key(session, OPERATOR, secret, project.id, name="test", **key_options)
    return Tenant(tenant.id, project.id, made.key.id, made.plaintext)


async def set_price(session: AsyncSession, model: str, *, factor: int = 1, **options: Any) -> None:
    """The test prices for a model, times `factor`."""
    await prices.set_price(
        session,
        OPERATOR,
        model=model,
        input_nano=INPUT_NANO * factor,
        cached_input_nano=CACHED_NANO * factor,
        output_nano=OUTPUT_NANO * factor,
        **options,
    )


class Gateway:
    """A running application with a client, and shortcuts to what tests set up and read."""

    def __init__(self, app: Litestar, engine: ScriptedEngine, client: httpx.AsyncClient) -> None:
        self.app = app
        self.engine = engine
        self.client = client
        self.tenant: Tenant

    @property
    def parts(self) -> Parts:
        parts: Parts = self.app.state.parts
        return parts

    async def add_tenant(self, slug: str, **key_options: Any) -> Tenant:
        """Another tenant with a project and a key."""
        async with self.parts.billing.db.begin() as session:
            return await add_tenant(session, self.parts.billing.secret, slug, **key_options)

    async def set_limit(self, tenant: Tenant, quota: str, hard: int | None, **options: Any) -> None:
        async with self.parts.billing.db.begin() as session:
            await rules.set_limit(
                session, OPERATOR, scope_kind="tenant", scope_id=tenant.id, quota=quota, hard=hard, **options
            )

    async def set_price(self, model: str, **options: Any) -> None:
        async with self.parts.billing.db.begin() as session:
            await set_price(session, model, **options)

    async def ledger(self) -> list[LedgerEntry]:
        """All rows, oldest first, once everything in flight is settled."""
        await self.parts.background.drain(60)
        await self.parts.billing.ledger.replay()
        async with self.parts.billing.db.read() as session:
            return list(await session.scalars(sa.select(LedgerEntry).order_by(LedgerEntry.id)))

    async def post(self, path: str, body: Any, tenant: Tenant | None = None, **headers: str) -> httpx.Response:
        """A JSON POST with the tenant's key; names of headers with underscores for hyphens."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return await self.client.post(
            path,
            content=content,
            headers={"content-type": "application/json", **(tenant or self.tenant).headers, **sent},
        )

    async def chat(self, content: str = "hi", *, tenant: Tenant | None = None, **fields: Any) -> httpx.Response:
        body = {"model": "m", "messages": [{"role": "user", "content": content}], **fields}
        return await self.post("/v1/chat/completions", body, tenant)

    async def complete(self, prompt: Any = "once", **fields: Any) -> httpx.Response:
        return await self.post("/v1/completions", {"model": "m", "prompt": prompt, **fields})


StartGateway = Callable[..., Awaitable[Gateway]]


class Routes:
    """Applications with nothing of a gateway in them, used again: reading all signatures takes ten times what the rest
    of a start takes."""

    def __init__(self) -> None:
        self._free: dict[Any, list[Litestar]] = {}

    @contextmanager
    def lend(self, settings: Settings) -> Iterator[Litestar]:
        """One that nobody else has meanwhile."""
        free = self._free.setdefault((settings.max_body_bytes, *settings.cors_allow_origins), [])
        app = free.pop() if free else routed(settings)
        bare = app.asgi_handler
        yield app
        app.asgi_handler, app.state = bare, State()
        free.append(app)


@pytest.fixture(scope="session")
def routes() -> Routes:
    return Routes()


@asynccontextmanager
async def _started(app: Litestar) -> AsyncIterator[None]:
    """The lifespan in a task of its own: it must end in the task that began it, which a fixture does not promise."""
    started, stop = asyncio.Event(), asyncio.Event()

    async def live() -> None:
        try:
            async with app.lifespan():
                started.set()
                await stop.wait()
        finally:
            started.set()

    task = asyncio.create_task(live())
    await started.wait()
    if task.done():
        await task
    yield
    stop.set()
    await task


@pytest.fixture
async def start_gateway(data_root: Path, redis_url: str, seed: Seed, routes: Routes) -> AsyncIterator[StartGateway]:
    """Starts gateways that are stopped at the test's end. Settings' fields and an engine may be given."""
    async with AsyncExitStack() as stack:
        count = 0

        async def start(engine: ScriptedEngine | None = None, **fields: Any) -> Gateway:
            nonlocal count
            count += 1
            folder = data_root / f"gateway{count}"
            await asyncio.to_thread(shutil.copytree, seed.folder, folder)
            overrides = Overrides(
                engine=engine or ScriptedEngine(),
                embedder=fields.pop("embedder", WordEmbedder()),
                text_model=fields.pop("text_model", None) or text_model(),
                further=fields.pop("further", ()),
                upstreams=fields.pop("upstreams", ()),
            )
            # A busy test machine is no absent Redis.
            fields.setdefault("redis_deadline_ms", 10_000)
            fields.setdefault("redis_url", redis_url)
            settings = Settings(data_dir=str(folder), **fields)
            app = stack.enter_context(routes.lend(settings))
            equip(app, settings, overrides)
            await stack.enter_async_context(_started(app))
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)  # type: ignore[arg-type]
            client = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://weir"))
            assert isinstance(overrides.engine, ScriptedEngine)
            gateway = Gateway(app, overrides.engine, client)
            gateway.tenant = seed.tenant
            return gateway

        yield start


@pytest.fixture
async def gateway(start_gateway: StartGateway) -> Gateway:
    """One gateway with the default script."""
    return await start_gateway()


def frames(response: httpx.Response) -> list[Any]:
    """The decoded `data:` frames of a stream that must end with [DONE]."""
    text = response.text
    assert text.endswith("data: [DONE]\n\n")
    payloads = [block.removeprefix("data: ") for block in text.split("\n\n") if block.startswith("data: ")]
    assert payloads.pop() == "[DONE]"
    return [msgspec.json.decode(payload) for payload in payloads]


async def until(condition: Callable[[], bool]) -> None:
    """Turns the loop until `condition` holds; fails after a minute."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in Redis or SQL and has no event
            await asyncio.sleep(0)

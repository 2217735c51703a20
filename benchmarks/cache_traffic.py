"""A simulated day of customer-service traffic: which share do exact and semantic hits serve, and what do they save?

    python -m benchmarks.cache_traffic [--requests 10000] [--threshold 0.95] [--zipf 1.0] [--unique 0.45] [--live 0.15]

Each request is, by a seeded draw: live (from the labelled list, `--live`), unique (a question nobody repeats: a
labelled question with a case number of its own, `--unique`), or a repeat: an intent drawn by Zipf's law
(`--zipf`) over the development half's intents, near misses among them as intents of their own, in its commonest wording
with `--verbatim` probability and else in one of its labelled wordings. Answers take the tokens that a seeded draw
gives each intent; prices are nano-USD per million tokens. Every request is asked of a whole gateway over a real Redis
and SQLite: admission, policy, lookups, guards, ledger; only what generates is a table, and the embeddings are made in
bulk beforehand. What the answers say was saved must be what the ledger and `weir report cache-savings` say. A hit
counts as wrong when its question is of another group of intents than the one asked, or labelled a near miss of it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence

import httpx
import msgspec
import numpy as np
import sqlalchemy as sa

from benchmarks.cache_lookup import Known, valkey
from benchmarks.cache_quality import DATA, Pair, load
from billing.db import Database, upgrade
from billing.keys import create_key
from billing.money import charge
from billing.prices import set_price
from billing.principal import Actor
from billing.reports.registry import REPORTS
from billing.reports.report import ReportQuery
from billing.tables import LedgerEntry
from billing.tenants import create_project, create_tenant
from cache.embedder import BatchingEmbedder, EmbedderSpec
from cache.embedder_process import ProcessBackend
from cache.semantic import embedded_text
from engine.config import EngineConfig
from gateway.app import create_app
from gateway.calls import Call, Counts, Piece
from gateway.parts import Overrides, Parts
from gateway.settings import Settings
from gateway.upstreams.base import Progress

_OPERATOR = Actor.operator()
INPUT_PRICE, OUTPUT_PRICE = 150_000_000, 600_000_000  # nano-USD per million tokens: $0.15 and $0.60


class Asked(msgspec.Struct, frozen=True):
    """One request of the day: its group of intents, its text, and what generating its answer takes."""

    group: str
    text: str
    prompt_tokens: int
    completion_tokens: int


class Answer(msgspec.Struct, frozen=True):
    """What a client got: `x-weir-cache`, the usage it was told, the text."""

    cache: str
    prompt_tokens: int
    completion_tokens: int
    text: str


class Saved(msgspec.Struct):
    """Tokens that were not generated, and their price, nano-USD."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    nano_usd: int = 0

    def add(self, answer: Answer) -> None:
        """One answer that was served again; each token class rounded once, as the ledger does."""
        self.prompt_tokens += answer.prompt_tokens
        self.completion_tokens += answer.completion_tokens
        self.nano_usd += charge(answer.prompt_tokens, INPUT_PRICE) + charge(answer.completion_tokens, OUTPUT_PRICE)


class Day(msgspec.Struct):
    """Counts by outcome, hits for another intent, and what the hits saved: as the answers say, and as the books do."""

    outcomes: Counter[str]
    reasons: Counter[str]
    wrong: int = 0
    saved: Saved = msgspec.field(default_factory=Saved)
    booked: Saved = msgspec.field(default_factory=Saved)


class Table:
    """An upstream that answers from a table: every question's group and text, in as many tokens as its draw says."""

    name, revision = "table", "1"

    def __init__(self, asked: Iterable[Asked], *, model: str = "m") -> None:
        self.model = model
        self._sizes = {one.text: one for one in asked}

    async def generate(self, call: Call, attempt: int) -> AsyncIterator[Progress]:  # noqa: ARG002
        one = self._sizes[call.body["messages"][-1]["content"]]
        counts = Counts(prompt_tokens=one.prompt_tokens, completion_tokens=one.completion_tokens)
        yield Progress([Piece(index=0, text=f"{one.group}\t{one.text}")], counts)
        yield Progress([Piece(index=0, finish_reason="stop")], counts)

    async def close(self) -> None:
        pass


def intents(pairs: list[Pair]) -> list[list[str]]:
    """Wordings by intent, the commonest first; a near miss is an intent of its own."""
    wordings: dict[str, list[str]] = {}
    owner: dict[str, str] = {}
    for pair in pairs:
        name = owner.setdefault(pair.a, pair.a)
        wordings.setdefault(name, [pair.a])
        if pair.label == "paraphrase" and pair.b not in owner:
            owner[pair.b] = name
            wordings[name].append(pair.b)
    for pair in pairs:
        if pair.b not in owner:
            owner[pair.b] = pair.b
            wordings[pair.b] = [pair.b]
    return list(wordings.values())


def day(arguments: argparse.Namespace) -> Iterator[Asked]:
    rng = random.Random(arguments.seed)
    repeated = intents(load("en", "dev"))
    groups = {text: pair.group for pair in load("en", "dev") for text in (pair.a, pair.b)}
    rng.shuffle(repeated)
    weights = [1 / (rank + 1) ** arguments.zipf for rank in range(len(repeated))]
    lines = (DATA / "live.tsv").read_text("utf-8").splitlines()
    live = [line.split("\t")[1] for line in lines if line.startswith("live")]
    for number in range(arguments.requests):
        draw = rng.random()
        if draw < arguments.live:
            intent = text = rng.choice(live)
        elif draw < arguments.live + arguments.unique:
            intent = text = f"Regarding case {100_000 + number}: {rng.choice(repeated)[0]}"
        else:
            wordings = rng.choices(repeated, weights)[0]
            intent = wordings[0]
            text = intent if rng.random() < arguments.verbatim else rng.choice(wordings)
        size = random.Random(intent)
        yield Asked(groups.get(intent, intent), text, 220 + len(text) // 4, 20 + int(size.lognormvariate(4.7, 0.6)))


Ask = Callable[[str], Awaitable[Answer]]


async def play(asked: Sequence[Asked], ask: Ask) -> Day:
    """Asks one after the other, as the shares would else depend on who is first."""
    seen = Day(Counter(), Counter())
    near_misses = {frozenset((pair.a, pair.b)) for pair in load("en", "dev") if pair.label == "negative"}
    for one in asked:
        answer = await ask(one.text)
        outcome, _, rest = answer.cache.partition(";")
        seen.outcomes[outcome] += 1
        if outcome == "bypass":
            seen.reasons[rest.partition("reason=")[2].partition(";")[0]] += 1
        if outcome in ("hit", "semantic"):
            seen.saved.add(answer)
            group, _, text = answer.text.partition("\t")
            seen.wrong += group != one.group or frozenset((text, one.text)) in near_misses
    return seen


async def booked(db: Database) -> Saved:
    """What `weir report cache-savings` says; the rows behind it must add up to the same."""
    async with db.read() as session:
        table = await REPORTS["cache_savings"].run(session, Actor.operator(), ReportQuery(by=("model",)))
        columns = (LedgerEntry.saved_input_tokens, LedgerEntry.saved_output_tokens, LedgerEntry.saved_nano_usd)
        rows = (await session.execute(sa.select(*(sa.func.coalesce(sa.func.sum(each), 0) for each in columns)))).one()
    assert table.total is not None
    told = Saved(*(table.total[column.key] for column in columns))
    assert told == Saved(*map(int, rows)), f"the report says {told}, the rows {rows}"
    return told


async def with_gateway(asked: Sequence[Asked], known: Known, socket: str, threshold: float, folder: str) -> Day:
    """A gateway of its own for the day. Raises: AssertionError where its books say otherwise than its answers."""
    settings = Settings(
        engine=EngineConfig(model="none"),
        data_dir=folder,
        redis_url=f"unix://{socket}",
        redis_deadline_ms=5000,
        cache_threshold=threshold,
    )
    await upgrade(settings.effective_database_url)
    app = create_app(settings, Overrides(embedder=known, upstreams=(Table(asked),)))
    async with app.lifespan():
        parts: Parts = app.state.parts
        async with parts.billing.db.begin() as session:
            await set_price(session, _OPERATOR, model="m", input_nano=INPUT_PRICE, output_nano=OUTPUT_PRICE)
            tenant = await create_tenant(session, _OPERATOR, slug="shop")
            project = await create_project(session, _OPERATOR, tenant.id, name="Help")
            made = await create_key(session, _OPERATOR, parts.billing.secret, project.id, name="day")
        transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
        headers = {"authorization": f"Bearer {made.plaintext}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://weir", headers=headers) as client:
            seen = await play(asked, lambda text: _ask(client, parts, text))
        await parts.billing.ledger.replay()
        seen.booked = await booked(parts.billing.db)
    return seen


async def _ask(client: httpx.AsyncClient, parts: Parts, text: str) -> Answer:
    body = {"model": "m", "messages": [{"role": "system", "content": "Help."}, {"role": "user", "content": text}]}
    response = await client.post("/v1/chat/completions", json=body)
    response.raise_for_status()
    await parts.background.drain(60)  # the answer is stored before the next question
    return answer_of(response)


def answer_of(response: httpx.Response) -> Answer:
    """From a chat completion."""
    answer = response.json()
    usage = answer["usage"]
    text = answer["choices"][0]["message"]["content"]
    return Answer(response.headers["x-weir-cache"], usage["prompt_tokens"], usage["completion_tokens"], text)


async def embedded(asked: list[Asked]) -> Known:
    """All texts of the day embedded in advance, in bulk: the order of embedding does not change the outcome."""
    spec = EmbedderSpec.packaged()
    embedder = BatchingEmbedder(spec, ProcessBackend(spec))
    await embedder.start()
    texts = sorted({embedded_text(one.text) for one in asked})
    found = []
    for start in range(0, len(texts), 2000):
        found += await embedder.embed(texts[start : start + 2000])
    known = Known(embedder.fingerprint, dict(zip(texts, found, strict=True)))
    await embedder.close()
    assert np.isfinite(found[0].vector).all()
    return known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--threshold", type=float, nargs="+", default=[0.95, 0.90])
    parser.add_argument("--zipf", type=float, default=1.0, help="exponent of the intents' popularity")
    parser.add_argument("--unique", type=float, default=0.45, help="share of questions that nobody repeats")
    parser.add_argument("--live", type=float, default=0.15, help="share of questions for live data")
    parser.add_argument("--verbatim", type=float, default=0.25, help="how often the commonest wording is used")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    asked = list(day(arguments))
    known = asyncio.run(embedded(asked))
    for threshold in arguments.threshold:
        with valkey() as (socket, _), tempfile.TemporaryDirectory(prefix="weir-") as folder:
            seen = asyncio.run(with_gateway(asked, known, socket, threshold, folder))
        print(f"threshold {threshold:.2f}, {len(asked)} requests, {len({one.text for one in asked})} different texts")
        for outcome in ("hit", "semantic", "miss", "bypass"):
            print(f"  {outcome:10}{seen.outcomes[outcome] / len(asked):7.1%}")
        print(f"  hits for another intent: {seen.wrong}")
        print(f"  bypasses by reason: {dict(seen.reasons)}")
        saved = seen.saved
        print(f"  saved: {saved.prompt_tokens:,} prompt and {saved.completion_tokens:,} completion tokens,", end=" ")
        print(f"${saved.nano_usd / 1e9:.4f}; the ledger says {'the same' if seen.booked == saved else seen.booked}")
        assert seen.booked == saved


if __name__ == "__main__":
    main()

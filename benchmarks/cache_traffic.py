"""A simulated day of customer-service traffic: which share do exact and semantic hits serve, and what do they save?

    python -m benchmarks.cache_traffic [--requests 10000] [--threshold 0.95] [--zipf 1.0] [--unique 0.45] [--live 0.15]

Each request is, by a seeded draw: live (from the labelled list, `--live`), unique (a question nobody repeats: a
labelled question with a case number of its own, `--unique`), or a repeat: an intent drawn by Zipf's law
(`--zipf`) over the development half's intents, near misses among them as intents of their own, in its commonest wording
with `--verbatim` probability and else in one of its labelled wordings. Answers take the tokens that a seeded draw
gives each intent; prices are nano-USD per million tokens. Every request goes the gateway's road: policy, exact lookup,
semantic lookup with guards, store. A hit counts as wrong when its question is of another group of intents than the one
asked, or labelled a near miss of it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from datetime import date

import msgspec
import numpy as np
from redis.asyncio import Redis

from benchmarks.cache_lookup import Known, valkey
from benchmarks.cache_quality import DATA, Pair, load
from cache.embedder import BatchingEmbedder, EmbedderSpec
from cache.embedder_process import ProcessBackend
from cache.entry import CachedAnswer, CachedChoice, CachedUsage
from cache.flat_index import FlatIndex
from cache.outcome import Reason
from cache.partition import exact_key, partition_digest
from cache.policy import CachePolicy, decide
from cache.request import CacheRequest
from cache.semantic import SemanticCache, SemanticHit, embedded_text
from cache.store import CacheEntry, RedisStore

INPUT_PRICE, OUTPUT_PRICE = 150_000_000, 600_000_000  # nano-USD per million tokens: $0.15 and $0.60
TODAY = date(2026, 11, 29)


class Asked(msgspec.Struct, frozen=True):
    """One request of the day: its group of intents, its text, and what generating its answer takes."""

    group: str
    text: str
    prompt_tokens: int
    completion_tokens: int


class Day(msgspec.Struct):
    """Counts by outcome, hits for another intent, and what the hits saved."""

    outcomes: Counter[str]
    reasons: Counter[str]
    wrong: int = 0
    saved_prompt_tokens: int = 0
    saved_completion_tokens: int = 0

    def saved_nano_usd(self) -> int:
        money = self.saved_prompt_tokens * INPUT_PRICE + self.saved_completion_tokens * OUTPUT_PRICE
        return round(money / 1_000_000)


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


async def play(asked: list[Asked], known: Known, socket: str, policy: CachePolicy) -> Day:
    client = Redis(unix_socket_path=socket)
    store = RedisStore(client)
    cache = SemanticCache(store, FlatIndex(client, dims=known.dims), known)
    seen = Day(Counter(), Counter())
    near_misses = {frozenset((pair.a, pair.b)) for pair in load("en", "dev") if pair.label == "negative"}
    for one in asked:
        body = {"messages": [{"role": "system", "content": "Help."}, {"role": "user", "content": one.text}]}
        request = CacheRequest(tenant="t", project="p", model="m", model_revision="r", body=body, end_user=None)
        made = decide(request, policy, today=TODAY)
        if made.bypass:
            seen.outcomes["bypass"] += 1
            seen.reasons[made.reason] += 1
            continue
        partition = partition_digest(request, embedder_fingerprint=known.fingerprint, end_user_scope=False)
        key = exact_key(partition, request.text)
        found = await store.lookup("t", key, partition).run(client, timeout_s=5)
        answer, vector = found.answer, None
        outcome = "hit"
        if answer is None:
            near = await cache.lookup("t", partition, found.version, one.text, threshold=made.threshold, timeout_s=5)
            outcome = "semantic" if isinstance(near, SemanticHit) else "miss"
            if isinstance(near, SemanticHit):
                answer = near.answer
            else:
                vector = near.vector
                seen.reasons[near.reason] += 1
        seen.outcomes[outcome] += 1
        if answer is not None:
            seen.saved_prompt_tokens += answer.usage.prompt_tokens
            seen.saved_completion_tokens += answer.usage.completion_tokens
            group, _, text = (answer.choices[0].content or "").partition("\t")
            seen.wrong += group != one.group or frozenset((text, one.text)) in near_misses
            continue
        usage = CachedUsage(prompt_tokens=one.prompt_tokens, completion_tokens=one.completion_tokens)
        choice = CachedChoice(content=f"{one.group}\t{one.text}", finish_reason="stop")
        entry = CacheEntry(
            tenant="t",
            project="p",
            model="m",
            entry_id=key,
            partition=partition,
            embedder_fingerprint=known.fingerprint,
            text=one.text,
            answer=CachedAnswer(model="m", created=1, request_id="r", choices=(choice,), usage=usage),
            vector=vector,
            ttl_s=policy.ttl_s,
            max_entries=policy.max_entries,
            max_bytes=policy.max_bytes,
        )
        assert await store.store(entry, timeout_s=5)
    await client.aclose()
    return seen


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
        with valkey() as (socket, _):
            seen = asyncio.run(play(asked, known, socket, CachePolicy(threshold=threshold)))
        print(f"threshold {threshold:.2f}, {len(asked)} requests, {len({one.text for one in asked})} different texts")
        for outcome in ("hit", "semantic", "miss", "bypass"):
            print(f"  {outcome:10}{seen.outcomes[outcome] / len(asked):7.1%}")
        print(f"  hits for another intent: {seen.wrong}")
        print(f"  bypasses by reason: {dict(seen.reasons - Counter({Reason.SIMILARITY: 10**9, Reason.GUARD: 10**9}))}")
        tokens = (seen.saved_prompt_tokens, seen.saved_completion_tokens)
        print(f"  saved: {tokens[0]:,} prompt and {tokens[1]:,} completion tokens, ${seen.saved_nano_usd() / 1e9:.4f}")


if __name__ == "__main__":
    main()

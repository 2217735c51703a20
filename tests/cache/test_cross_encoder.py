"""The cross-encoder in its process: both orders are asked, trouble raises, and `SemanticCache` takes it for a miss."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from cache.cross_encoder import CrossEncoder
from cache.embedder import EmbedderSpec, Embedding
from cache.errors import EmbedderUnavailable


class Backend:
    """A `ProcessBackend` whose probability of a pair is the share of the first text's length in both."""

    def __init__(self) -> None:
        self.hang = False
        self.go_on = asyncio.Event()
        self.batches: list[list[str]] = []

    async def start(self) -> int:
        return 1

    async def run(self, texts: Sequence[str]) -> list[Embedding]:
        self.batches.append(list(texts))
        if self.hang:
            await self.go_on.wait()
        pairs = zip(texts[::2], texts[1::2], strict=True)
        return [Embedding(np.array([len(a) / (len(a) + len(b))], np.float32), 0) for a, b in pairs]

    async def close(self) -> None:
        pass


async def test_both_orders_are_asked_and_the_lower_probability_counts() -> None:
    backend = Backend()
    judge = CrossEncoder("unused", backend=backend)
    assert await judge.score("aaa", "b") == pytest.approx(0.25)
    assert await judge.score("b", "aaa") == pytest.approx(0.25)
    assert backend.batches[0] == ["aaa", "b", "b", "aaa"]


async def test_a_verdict_that_takes_too_long_is_refused_in_time() -> None:
    backend = Backend()
    backend.hang = True
    judge = CrossEncoder("unused", timeout_s=0.02, backend=backend)
    async with asyncio.timeout(60):
        with pytest.raises(EmbedderUnavailable, match="took longer"):
            await judge.score("a", "b")
    # and the next verdict waits for the late one, whose answer is still on its way
    backend.hang = False
    late = asyncio.create_task(judge.score("aaa", "b"))
    await asyncio.sleep(0)
    assert len(backend.batches) == 1
    backend.go_on.set()
    assert await late == pytest.approx(0.25)


@pytest.mark.heavy
@pytest.mark.parametrize(("outputs", "loads"), [(1, True), (3, False)])
async def test_a_real_cross_encoder_gives_probabilities_and_an_nli_head_is_refused(tmp_path, outputs, loads) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    packaged = Path(EmbedderSpec.packaged().path)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        if (packaged / name).exists():
            shutil.copy(packaged / name, tmp_path / name)
    config = BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=outputs
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    judge = CrossEncoder(str(tmp_path), timeout_s=30)
    if not loads:
        with pytest.raises(EmbedderUnavailable, match="3 outputs"):
            await judge.start()
        return
    await judge.start()
    score = await judge.score("How do I row?", "How do I swim?")
    assert 0 < score < 1
    assert await judge.score("How do I swim?", "How do I row?") == pytest.approx(score)
    await judge.close()

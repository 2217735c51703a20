"""Scripted stands-in at our own protocols: an engine that says what a test wrote, an embedder of words."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, pre_tokenizers

from cache.embedder import Embedding
from engine.chat_template import ChatTemplate
from engine.errors import EngineError, EngineUnavailable
from engine.tokenizer import Tokenizer
from engine.types import (
    Delta,
    EngineHealth,
    EngineRequest,
    EngineStats,
    FinishReason,
    ModelInfo,
    TokenLogprob,
)
from gateway.prompts import TextModel

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>"
    "{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CONTEXT = 1024


def byte_tokenizer(config: dict[str, Any] | None = None) -> Tokenizer:
    """One token a byte, and ChatML's special tokens behind them: every text has ids, ids are easy to count."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: number for number, char in enumerate(alphabet)}
    rust = RustTokenizer(models.BPE(vocab=vocab, merges=[]))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    rust.decoder = decoders.ByteLevel()
    rust.add_special_tokens(list(SPECIALS))
    return Tokenizer(rust.to_str(), {"eos_token": "<|im_end|>", **(config or {})})


def model_info(name: str = "m", *, max_model_len: int = CONTEXT) -> ModelInfo:
    return ModelInfo(
        name=name,
        path=str(Path("/nonexistent")),
        revision="r" * 64,
        architecture="Scripted",
        max_model_len=max_model_len,
        vocab_size=259,
        logits_width=272,
        dtype="float32",
        eos_token_ids=(258,),
        bos_token_id=None,
        num_parameters=0,
    )


def text_model(name: str = "m", *, template: str | None = CHATML) -> TextModel:
    tokenizer = byte_tokenizer()
    return TextModel(model_info(name), tokenizer, ChatTemplate(template, tokenizer) if template else None)


class Script(msgspec.Struct, kw_only=True):
    """What one request gets: `steps` are the texts of successive deltas (one token each), then `finish`.

    `candidate_logprobs` gives each of several sequences its tokens' logprob, and its number as the last text.
    `fail_at` raises `error` before that step; `gate` is waited for before step `gate_at`.
    """

    steps: tuple[str, ...] = ("Hello", " world")
    finish: FinishReason = FinishReason.STOP
    candidate_logprobs: tuple[float, ...] = ()
    fail_at: int | None = None
    error: EngineError | None = None
    gate_at: int = 0


class ScriptedEngine:
    """An EngineClient. `script` gives each request its Script; `requests` and `aborted` record what came."""

    def __init__(self, script: Script | Callable[[EngineRequest], Script] | None = None, *, name: str = "m") -> None:
        self._script = script or Script()
        self._info = model_info(name)
        self.requests: list[EngineRequest] = []
        self.aborted: list[str] = []
        self.running: set[str] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.status = "ready"
        self.stepped = asyncio.Event()

    @property
    def model(self) -> ModelInfo:
        return self._info

    async def start(self) -> None:
        self.status = "ready"

    async def generate(self, request: EngineRequest) -> AsyncIterator[Delta]:
        if self.status != "ready":
            raise EngineUnavailable(f"the engine is {self.status}")
        self.requests.append(request)
        script = self._script if isinstance(self._script, Script) else self._script(request)
        self.running.add(request.request_id)
        finished = False
        try:
            for delta in self._deltas(request, script):
                if len(delta.token_ids) and delta.completion_tokens == script.gate_at + 1:
                    await self.gate.wait()
                if script.fail_at is not None and delta.completion_tokens == script.fail_at + 1:
                    assert script.error is not None
                    raise script.error
                yield delta
                self.stepped.set()
                await asyncio.sleep(0)
            finished = True
        finally:
            self.running.discard(request.request_id)
            if not finished:
                self.aborted.append(request.request_id)

    def _deltas(self, request: EngineRequest, script: Script) -> list[Delta]:
        sampling = request.sampling
        steps = script.steps[: sampling.max_tokens]
        finish = FinishReason.LENGTH if len(steps) < len(script.steps) else script.finish
        if not steps:
            return [
                self._delta(request, index, "", 0, finish=FinishReason.LENGTH, last=index == sampling.n - 1)
                for index in range(sampling.n)
            ]
        out = []
        for number, step in enumerate(steps):
            for index in range(sampling.n):
                ends = number == len(steps) - 1
                text = f"{step}#{index}" if ends and script.candidate_logprobs else step
                out.append(
                    self._delta(
                        request,
                        index,
                        text,
                        number + 1,
                        finish=finish if ends else None,
                        last=ends and index == sampling.n - 1,
                        logprob=script.candidate_logprobs[index] if script.candidate_logprobs else -0.5,
                    )
                )
        return out

    def _delta(
        self,
        request: EngineRequest,
        index: int,
        text: str,
        count: int,
        *,
        finish: FinishReason | None,
        last: bool,
        logprob: float = -0.5,
    ) -> Delta:
        sampling = request.sampling
        logprobs = None
        if sampling.logprobs is not None and text:
            top = tuple(
                TokenLogprob(300 + rank, f"alt{rank}", f"alt{rank}".encode(), -float("inf") if rank else -0.5)
                for rank in range(sampling.logprobs)
            )
            logprobs = [TokenLogprob(count, text, text.encode(), logprob, 1, top)]
        prompt_logprobs = None
        if sampling.prompt_logprobs is not None and count <= 1:
            ids = request.prompt_token_ids
            prompt_logprobs = [None, *(TokenLogprob(i, chr(97 + i % 26), b"x", -1.0, 1) for i in ids[1:])]
        return Delta(
            index=index,
            text=text,
            token_ids=[count] if text else [],
            prompt_tokens=len(request.prompt_token_ids),
            cached_tokens=0,
            completion_tokens=count,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            finish_reason=finish,
            engine_us=1000 if last else 0,
            last=last,
        )

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    async def stats(self) -> EngineStats:
        return EngineStats(num_running=len(self.running), kv_blocks_total=10, kv_blocks_free=10)

    async def health(self) -> EngineHealth:
        return EngineHealth(status=self.status)

    async def drain(self, timeout_s: float) -> None:
        self.status = "draining"

    async def close(self) -> None:
        self.status = "dead"


class WordEmbedder:
    """Bags of words as unit vectors: the same words in another order are near, other words are far."""

    fingerprint = "f" * 64
    dims = 64
    languages = frozenset({"en"})

    async def started(self) -> None:
        """It is."""

    async def embed(self, texts: Sequence[str]) -> list[Embedding]:
        return [self._one(text) for text in texts]

    def _one(self, text: str) -> Embedding:
        vector = np.zeros(self.dims, np.float32)
        words = text.lower().replace("?", "").replace(".", "").split()
        for word in words:
            vector[int(hashlib.sha256(word.encode()).hexdigest(), 16) % self.dims] += 1
        return Embedding(vector / (np.linalg.norm(vector) or 1), len(words) + 2)

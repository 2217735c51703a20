"""`LLM`: offline batches in this process, with the arguments of the classic guides.

from engine import LLM, SamplingParams
llm = LLM(model="smollm2", max_num_seqs=64)
for output in llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=16)):
    print(output.outputs[0].text)
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from engine.chat_template import ChatTemplate
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import EngineError, InvalidRequest
from engine.output_processor import OutputProcessor
from engine.tokenizer import Tokenizer
from engine.types import Delta, EngineRequest, EngineStats, SamplingParams, TokenLogprob

Prompt = str | Sequence[int] | Mapping[str, Any]


@dataclass
class CompletionOutput:
    """One sequence's answer. `finish_reason`: stop, length or abort; `logprobs` one entry a token, if asked for."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass
class RequestOutput:
    """One prompt's answers. `num_cached_tokens` came from the prefix cache; `engine_us` is its share of engine time."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprob | None] | None = None
    num_cached_tokens: int = 0
    engine_us: int = 0
    finished: bool = False


class LLM:
    """A model and its engine on the calling thread.

    Args: model and every other name of `EngineConfig` (vLLM's names); names of older guides are accepted with a
    warning. Raises: ConfigError, ModelLoadError.
    """

    def __init__(self, model: str, **settings: Any) -> None:
        self.config = EngineConfig.from_mapping({"model": str(model), **settings})
        from engine.startup import OFFLINE_GPU_STEP_TOKENS, build_core, pick_device

        if not self.config.max_num_batched_tokens and pick_device(self.config).type != "cpu":
            self.config = msgspec.structs.replace(self.config, max_num_batched_tokens=OFFLINE_GPU_STEP_TOKENS)
        self._core: EngineCore = build_core(self.config)
        folder = Path(self.config.tokenizer or self._core.info.path)
        self._folder = folder
        self._tokenizer = Tokenizer.from_folder(folder)
        self._processor = OutputProcessor(self._tokenizer, self._core.stop_sequence)
        self._salt = os.urandom(32)
        self._ids = itertools.count()

    def get_tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def stats(self) -> EngineStats:
        return self._core.stats()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answers in the order of the prompts: text, token ids, or {"prompt": ...} / {"prompt_token_ids": ...}.

        `use_tqdm` shows a progress bar on a terminal. Raises: InvalidRequest before anything runs; RequestFailed.
        """
        parsed = [self._parse(prompt) for prompt in _as_list(prompts)]
        params = _params_for(len(parsed), sampling_params)
        outputs = [
            RequestOutput(f"{next(self._ids)}", text, ids, [CompletionOutput(i) for i in range(sampling.n)])
            for (text, ids), sampling in zip(parsed, params, strict=True)
        ]
        requests = [
            EngineRequest(
                request_id=output.request_id,
                prompt_token_ids=output.prompt_token_ids,
                sampling=sampling,
                cache_salt=self._salt,
            )
            for output, sampling in zip(outputs, params, strict=True)
        ]
        self._run(requests, {output.request_id: output for output in outputs}, show=use_tqdm)
        return outputs

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """As `generate`, on conversations: one, or a list of them."""
        many = messages if messages and not isinstance(messages[0], Mapping) else [messages]
        template = ChatTemplate.from_folder(self._folder, self._tokenizer)
        if template is None:
            raise InvalidRequest(f"{self._folder} holds no chat template: use generate", param="messages")
        prompts: list[Prompt] = [template.encode(list(conversation)) for conversation in many]  # type: ignore[arg-type]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def _run(self, requests: list[EngineRequest], outputs: dict[str, RequestOutput], *, show: bool) -> None:
        from rich.progress import Progress

        for request in requests:
            self._core.validate(request)  # all of them, before any runs or holds a place
        waiting = iter(requests)
        accepted = [self._core.accept(request) for request in itertools.islice(waiting, self._room())]
        with Progress(disable=not show, transient=True) as progress:
            bar = progress.add_task("generating", total=len(requests))
            try:
                while accepted or self._core.has_work:
                    for item in accepted:
                        self._processor.add(item.request)
                        self._core.add(item)
                    progress.advance(bar, self._step(outputs))
                    room = self._room() - len(self._core.scheduler.groups)
                    accepted = [self._core.accept(request) for request in itertools.islice(waiting, max(0, room))]
            except BaseException:
                for request in requests:
                    self._processor.forget(request.request_id)
                    self._core.abort(request.request_id)
                raise

    def _room(self) -> int:
        """Requests handed to the core at once: beyond that the queue gate would refuse an offline batch."""
        return self.config.max_num_queued_reqs

    def _step(self, outputs: dict[str, RequestOutput]) -> int:
        """Returns how many requests ended."""
        ended = 0
        for core_output in self._core.step():
            for item in self._processor.process(core_output):
                if isinstance(item, EngineError):
                    raise item
                ended += _take(outputs[core_output.request_id], item)
        return ended

    def _parse(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, Mapping):
            if "prompt_token_ids" in prompt:
                return None, list(prompt["prompt_token_ids"])
            if "prompt" not in prompt:
                raise InvalidRequest(
                    f"a prompt has 'prompt' or 'prompt_token_ids', got {sorted(prompt)}", param="prompt"
                )
            prompt = str(prompt["prompt"])
        if isinstance(prompt, str):
            return prompt, self._tokenizer.encode(prompt)
        return None, list(prompt)


def _take(output: RequestOutput, delta: Delta) -> int:
    """Joins a delta to its request. Returns 1 when it was the last."""
    answer = output.outputs[delta.index]
    answer.text += delta.text
    answer.token_ids += delta.token_ids
    if delta.logprobs is not None:
        answer.logprobs = [*(answer.logprobs or []), *delta.logprobs]
    if delta.prompt_logprobs is not None:
        output.prompt_logprobs = delta.prompt_logprobs
    if delta.finish_reason is not None:
        answer.finish_reason, answer.stop_reason = delta.finish_reason.value, delta.stop_reason
    output.num_cached_tokens = delta.cached_tokens
    if delta.last:
        output.finished, output.engine_us = True, delta.engine_us
    return int(delta.last)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt is a text, a mapping or a list of ids; anything else is a list of prompts."""
    if isinstance(prompts, str | Mapping) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _params_for(
    count: int, sampling_params: SamplingParams | Sequence[SamplingParams] | None
) -> Sequence[SamplingParams]:
    if sampling_params is None:
        return [SamplingParams()] * count
    if isinstance(sampling_params, SamplingParams):
        return [sampling_params] * count
    if len(sampling_params) != count:
        raise InvalidRequest(f"{count} prompts but {len(sampling_params)} sampling params", param="sampling_params")
    return sampling_params

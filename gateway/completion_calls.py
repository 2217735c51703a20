"""From a completion body to a Call: prompts as texts or ids, echo, suffix, best_of."""

from __future__ import annotations

import asyncio

import msgspec

from gateway.calls import Call
from gateway.constraints import Constrainer
from gateway.errors import InvalidRequest
from gateway.intake import Intake
from gateway.prompts import TextModel, truncated_ids
from gateway.routing import Router
from gateway.sampling import DEFAULT_COMPLETION_TOKENS, check_ids, completion_sampling, fit
from gateway.schemas.completions import MAX_PROMPTS, CompletionRequest
from gateway.texts import Texts

_FIM_TOKENS = (  # prefix, suffix, middle as code models spell them
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<PRE>", "<SUF>", "<MID>"),
)


class BuiltCompletion(msgspec.Struct, frozen=True):
    """The call, and its prompts as text for `echo`."""

    call: Call
    prompt_texts: list[str]
    model: TextModel

    def first_token_text(self, number: int) -> str:
        """The text of a prompt's first token: a hidden BOS has none."""
        return self.model.decode(self.call.prompts[number][:1])


class CompletionCalls:
    """Builds completion calls."""

    def __init__(self, texts: Texts, router: Router, constrainer: Constrainer, *, max_sequences: int) -> None:
        """Args: max_sequences of one body, over all its prompts (the setting `max_n`)."""
        self._texts = texts
        self._router = router
        self._constrainer = constrainer
        self._max_sequences = max_sequences

    async def build(self, intake: Intake, data: CompletionRequest) -> BuiltCompletion:
        """Raises: GatewayError for everything that is wrong with the request itself."""
        route = self._router.resolve(data.model, intake.principal)
        model = self._texts.of(route)
        wanted = DEFAULT_COMPLETION_TOKENS if data.max_tokens is None else data.max_tokens
        if wanted == 0 and not data.echo:
            raise InvalidRequest(
                "Invalid 'max_tokens': 0 generates nothing and is only allowed with 'echo'.",
                param="max_tokens",
                code="integer_below_min_value",
            )
        self._check_sequences(data)
        prompts = await self._prompts(data, model, budget=model.info.max_model_len - max(1, wanted))
        plan = self._constrainer.completion(data.response_format, model)
        longest = max(map(len, prompts))
        needs_none = (
            wanted == 0 and data.logprobs is None
        )  # the engine scores a prompt with the token it makes after it
        max_tokens = fit(longest, wanted, model.info, param="prompt", allow_full=needs_none)
        call = intake.call(
            prompts=prompts,
            sampling=completion_sampling(data, model.info, grammar=plan.grammar, max_tokens=max_tokens),
        )
        return BuiltCompletion(call, self._echo_texts(data, prompts, model), model)

    def _check_sequences(self, data: CompletionRequest) -> None:
        """Each prompt's n (or best_of) sequences are generated at once. Raises: InvalidRequest."""
        param = "best_of" if (data.best_of or 0) > (data.n or 1) else "n"
        each, num_prompts = max(data.n or 1, data.best_of or 0), len(_split(data.prompt))
        if num_prompts * each > self._max_sequences:
            raise InvalidRequest(
                f"Invalid '{param}': {num_prompts} prompts times {param} {each} are {num_prompts * each} sequences, at "
                f"most {self._max_sequences} (max_n) are generated for one request.",
                param=param,
                code="integer_above_max_value",
            )

    async def _prompts(self, data: CompletionRequest, model: TextModel, *, budget: int) -> list[list[int]]:
        given = _split(data.prompt)
        if data.suffix is not None:
            given = [_infilled(prompt, data.suffix, model) for prompt in given]
        ids = await asyncio.gather(*(self._ids(prompt, data, model) for prompt in given))
        return [truncated_ids(each, data.truncation or "disabled", budget) for each in ids]

    async def _ids(self, prompt: str | list[int], data: CompletionRequest, model: TextModel) -> list[int]:
        if isinstance(prompt, str):
            ids = await model.encode(prompt, add_special_tokens=data.add_special_tokens is not False)
        else:
            check_ids(prompt, model.info, "prompt")
            ids = _with_bos(prompt, model) if data.add_special_tokens is not False else list(prompt)
        if not ids:
            raise InvalidRequest(
                f"Invalid 'prompt': empty prompt. The model `{model.info.name}` needs at least one token.",
                param="prompt",
                code="empty_string",
            )
        return ids

    def _echo_texts(self, data: CompletionRequest, prompts: list[list[int]], model: TextModel) -> list[str]:
        """A text prompt is echoed as it was sent; ids are decoded."""
        if not data.echo:
            return []
        given = _split(data.prompt)
        return [
            prompt if isinstance(prompt, str) else model.decode(ids) for prompt, ids in zip(given, prompts, strict=True)
        ]


def _split(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """The list of prompts: one text, texts, one list of ids, or lists of ids.

    Raises: InvalidRequest for an empty list and for a mixture.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise _empty("prompt")
    if all(isinstance(item, int) for item in prompt):
        return [[item for item in prompt if isinstance(item, int)]]
    if any(isinstance(item, int) for item in prompt):
        raise InvalidRequest(
            "Invalid type for 'prompt': expected a string, an array of strings, an array of integers, or an array of "
            "integer arrays, but got a mixture instead.",
            param="prompt",
            code="invalid_type",
        )
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequest(
            f"Invalid 'prompt': array too long. Expected an array with maximum length {MAX_PROMPTS}, but got an array "
            f"with length {len(prompt)} instead.",
            param="prompt",
            code="array_above_max_length",
        )
    prompts = [item for item in prompt if isinstance(item, str | list)]
    for number, item in enumerate(prompts):
        if isinstance(item, list) and not item:
            raise _empty(f"prompt[{number}]")
    return prompts


def _empty(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid '{param}': empty array. Expected an array with minimum length 1, but got an empty array instead.",
        param=param,
        code="empty_array",
    )


def _with_bos(ids: list[int], model: TextModel) -> list[int]:
    """Ids are taken as they are, but a model that wants a BOS gets one, once."""
    bos = model.tokenizer.bos_token_id
    if bos is None or not model.tokenizer.adds_bos or (ids and ids[0] == bos):
        return list(ids)
    return [bos, *ids]


def _infilled(prompt: str | list[int], suffix: str, model: TextModel) -> str | list[int]:
    """Prefix and suffix around the model's own infilling tokens. Raises: InvalidRequest when it has none."""
    for prefix_token, suffix_token, middle_token in _FIM_TOKENS:
        marks = [model.tokenizer.token_to_id(token) for token in (prefix_token, suffix_token, middle_token)]
        if None in marks or not isinstance(prompt, str):
            continue
        before, between, after = (mark for mark in marks if mark is not None)
        head = model.tokenizer.encode(prompt, add_bos=False)
        tail = model.tokenizer.encode(suffix, add_bos=False)
        return [before, *head, between, *tail, after]
    raise InvalidRequest(
        f"'suffix' is not supported by the model `{model.info.name}`: it has no infilling tokens.",
        param="suffix",
        code="unsupported_parameter",
    )

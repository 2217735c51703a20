"""From a body's fields to the engine's SamplingParams, with the checks that need to know the model."""

from __future__ import annotations

from engine.types import ModelInfo, Priority, SamplingParams
from gateway.errors import ContextTooLong, InvalidRequest
from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's for /v1/completions
MAX_LOGIT_BIAS = 1024
_LEAST_TOP_P = 1e-6  # what OpenAI's 0 means: the most likely token alone

_TIER_PRIORITY = {"flex": Priority.BATCH, "default": Priority.STANDARD, "priority": Priority.INTERACTIVE}
_TIER_NAMES = {"auto": "default", "scale": "default", "fast": "priority"}
_TIER_RANK = {"flex": 0, "default": 1, "priority": 2}


def chat_sampling(request: ChatRequest, info: ModelInfo, *, grammar: str | None, max_tokens: int) -> SamplingParams:
    """Args: max_tokens as `fit` gave it. Raises: InvalidRequest."""
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequest(
            "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.", param="top_logprobs"
        )
    return _sampling(
        request,
        info,
        grammar=grammar,
        max_tokens=max_tokens,
        best_of=None,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        prompt_logprobs=None,
    )


def completion_sampling(
    request: CompletionRequest, info: ModelInfo, *, grammar: str | None, max_tokens: int
) -> SamplingParams:
    """Args: max_tokens as `fit` gave it. Raises: InvalidRequest."""
    n = request.n or 1
    best_of = request.best_of or None
    if best_of is not None and best_of < n:
        raise InvalidRequest(
            f"Invalid 'best_of': it must be at least n. Got best_of {best_of} and n {n}.",
            param="best_of",
            code="invalid_value",
        )
    if best_of is not None and best_of > n and request.stream:
        raise InvalidRequest("Cannot stream results with best_of > n.", param="best_of", code="invalid_value")
    echo_logprobs = request.logprobs if request.echo and request.logprobs is not None else None
    return _sampling(
        request,
        info,
        grammar=grammar,
        max_tokens=max_tokens,
        best_of=best_of if best_of != n else None,
        logprobs=request.logprobs,
        prompt_logprobs=echo_logprobs,
    )


def _sampling(
    request: ChatRequest | CompletionRequest,
    info: ModelInfo,
    *,
    grammar: str | None,
    max_tokens: int,
    best_of: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    stop_ids = tuple(request.stop_token_ids or ())
    check_ids(stop_ids, info, "stop_token_ids")
    return SamplingParams(
        n=request.n or 1,
        best_of=best_of,
        temperature=_or(request.temperature, 1.0),
        top_p=max(_or(request.top_p, 1.0), _LEAST_TOP_P),
        top_k=max(0, request.top_k or 0),
        min_p=request.min_p or 0.0,
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        logit_bias=_logit_bias(request.logit_bias, info),
        seed=request.seed,
        max_tokens=max_tokens,
        min_tokens=_min_tokens(request.min_tokens, max_tokens),
        stop=_stop(request.stop),
        stop_token_ids=stop_ids,
        ignore_eos=bool(request.ignore_eos),
        include_stop_str_in_output=bool(request.include_stop_str_in_output),
        skip_special_tokens=request.skip_special_tokens is not False,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        grammar=grammar,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _min_tokens(min_tokens: int | None, max_tokens: int) -> int:
    if min_tokens and min_tokens > max_tokens:
        raise InvalidRequest(
            f"Invalid 'min_tokens': {min_tokens} is more than the {max_tokens} tokens that may be generated.",
            param="min_tokens",
            code="integer_above_max_value",
        )
    return min_tokens or 0


def _logit_bias(bias: dict[str, float] | None, info: ModelInfo) -> dict[int, float] | None:
    if not bias:
        return None
    if len(bias) > MAX_LOGIT_BIAS:
        raise InvalidRequest(
            f"Invalid 'logit_bias': too many tokens. Expected at most {MAX_LOGIT_BIAS}, but got {len(bias)}.",
            param="logit_bias",
            code="object_above_max_properties",
        )
    out: dict[int, float] = {}
    for key, value in bias.items():
        # isdigit alone takes '²' and other digits that int() refuses.
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise InvalidRequest(
                f"Invalid key in 'logit_bias': {key[:40]!r}. Expected a token id.",
                param="logit_bias",
                code="invalid_value",
            )
        out[int(key)] = value
    check_ids(tuple(out), info, "logit_bias")
    return out


def check_ids(ids: tuple[int, ...] | list[int], info: ModelInfo, param: str) -> None:
    """Raises: InvalidRequest when an id is not one of the model's logits: len(tokenizer) is not the bound."""
    if not ids:
        return
    worst = max(ids) if min(ids) >= 0 else min(ids)
    if not 0 <= worst < info.logits_width:
        raise InvalidRequest(
            f"Invalid token id in '{param}': {worst}. Token ids of the model `{info.name}` are 0 to "
            f"{info.logits_width - 1}.",
            param=param,
            code="invalid_value",
        )


def fit(prompt_tokens: int, max_tokens: int | None, info: ModelInfo, *, param: str, allow_full: bool = False) -> int:
    """How many tokens may be generated: the wish, clamped to what the context leaves; None is all of it.

    Args: allow_full when nothing is to be generated (echo), so the prompt may fill the context.
    Raises: ContextTooLong when not one token fits.
    """
    room = info.max_model_len - prompt_tokens
    if room < 0 or (room == 0 and not allow_full):
        raise ContextTooLong(max_model_len=info.max_model_len, prompt_tokens=prompt_tokens, param=param)
    return room if max_tokens is None else min(max_tokens, room)


def tier_of(asked: str | None, cap: str) -> str:
    """The service tier a request gets: what it asked for, at most what its key may have."""
    tier = _TIER_NAMES.get(asked or "auto", asked or "default")
    return tier if _TIER_RANK[tier] <= _TIER_RANK.get(cap, 1) else cap


def priority_of(tier: str, asked: int | None, max_priority: int) -> Priority:
    """The engine's class: the tier's, or the one `priority` asks for (smaller is more urgent), within the key's cap."""
    wished = int(_TIER_PRIORITY[tier]) if asked is None else max(0, min(asked, int(Priority.BATCH)))
    floor = max_priority if _TIER_RANK[tier] < _TIER_RANK["priority"] else int(Priority.INTERACTIVE)
    return Priority(max(wished, min(floor, int(Priority.BATCH))))

"""May this request be answered from the cache, and may its answer be remembered?

Decided before any key is made and before any embedding, from the request alone. Rules, first match wins:

1. the tenant's or route's policy is off -> bypass
2. tools, or a conversation that holds tool results -> bypass, unless the policy caches tool calls (then exact only)
3. retrieval context -> bypass
4. live data (`cache.live_data`) -> bypass, unless the route says otherwise
5. a temperature above `max_temperature`: the caller wants variety -> bypass. OpenAI's default of 1 is not a wish for
   variety, so 1 is cached by default; 0 gives a tenant the strict reading (greedy only)
6. first-person wording (`cache.personal`) -> a partition of the end user's own; without an end user, bypass where the
   asker's own state is asked for ("where is my order")
7. `no-store` forbids writing, `no-cache` forbids reading but refreshes; both together are a bypass
8. semantic is off for `n` > 1 (several different answers are wanted), logprobs (they belong to one prompt),
   a fixed seed, completions (a continuation belongs to its very text), and where a chat does not end in a user text
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from cache.live_data import is_live
from cache.outcome import Reason
from cache.personal import Personal, personal_degree
from cache.request import CacheRequest, text_parts

DEFAULT_THRESHOLD = 0.95
DEFAULT_TTL_S = 86_400
FREE, FULL = "free", "full"
FOLLOW_UP_WORDS = 8

_Share = Annotated[float, Meta(ge=0.0, le=1.0)]
_Size = Annotated[int, Meta(ge=1, le=2**31)]
_HIT_PRICE = r"^(free|full|(100(\.0{1,4})?|[0-9]{1,2}(\.[0-9]{1,4})?)%)$"
_Price = Annotated[str, Meta(pattern=_HIT_PRICE, max_length=12)]


class CachePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tenant's and a route's settings come to. `threshold` is a cosine; guards cannot be switched off.

    `ttl_s` None: entries leave by the size caps alone. `rerank_below`: winners under this cosine must also pass the
    cross-encoder, where one is configured. `shadow_share`: the part of semantic hits that is generated again in the
    background to estimate the false-hit rate. `hit_price`: what an answer served again is charged, `free`, `full` or a
    percentage of its price (`25%`). Sizes are bytes.
    """

    enabled: bool = True
    semantic: bool = True
    hit_price: str = FREE
    threshold: float = DEFAULT_THRESHOLD
    rerank_below: float = 0.0
    ttl_s: int | None = DEFAULT_TTL_S
    live_data: Literal["bypass", "allow"] = "bypass"
    tools: Literal["bypass", "exact"] = "bypass"
    personal: Literal["end_user", "bypass", "share"] = "end_user"
    max_temperature: float = 1.0
    max_answer_bytes: int = 256 * 1024
    max_entries: int = 100_000
    max_bytes: int = 512 * 1024 * 1024
    shadow_share: float = 0.0

    def __post_init__(self) -> None:
        for name in ("threshold", "rerank_below", "shadow_share"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"cache policy: {name} is {value}, it must be 0 to 1")
        for name in ("max_answer_bytes", "max_entries", "max_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"cache policy: {name} is {getattr(self, name)}, it must be at least 1")
        if self.ttl_s is not None and self.ttl_s < 1:
            raise ValueError(f"cache policy: ttl_s is {self.ttl_s}, it must be at least 1 second")
        read_hit_price(self.hit_price)

    @property
    def hit_share_ppm(self) -> int:
        """The part of its price that a hit is charged, in parts per million."""
        return read_hit_price(self.hit_price)


class TenantCachePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tenant has otherwise than the server: a `CachePolicy` of which any field may be left out, within bounds.

    Sizes are 1 to 2^31 bytes or entries; `ttl_s` is 1 to 10^9 seconds, or None; `hit_price` is `free`, `full` or a
    percentage with at most four decimals.
    """

    enabled: bool | UnsetType = UNSET
    semantic: bool | UnsetType = UNSET
    hit_price: _Price | UnsetType = UNSET
    threshold: Annotated[float, Meta(ge=0.5, le=1.0)] | UnsetType = UNSET
    rerank_below: _Share | UnsetType = UNSET
    ttl_s: Annotated[int, Meta(ge=1, le=10**9)] | UnsetType | None = UNSET
    live_data: Literal["bypass", "allow"] | UnsetType = UNSET
    tools: Literal["bypass", "exact"] | UnsetType = UNSET
    personal: Literal["end_user", "bypass", "share"] | UnsetType = UNSET
    max_temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | UnsetType = UNSET
    max_answer_bytes: _Size | UnsetType = UNSET
    max_entries: _Size | UnsetType = UNSET
    max_bytes: _Size | UnsetType = UNSET
    shadow_share: _Share | UnsetType = UNSET

    def as_dict(self) -> dict[str, Any]:
        """The fields that were given."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not UNSET}

    def over(self, policy: CachePolicy) -> CachePolicy:
        """`policy` with the given fields in place of its own."""
        return msgspec.structs.replace(policy, **self.as_dict())


class RouteCachePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a route narrows every tenant's policy. A route is what a name means to all tenants, and may hold data that
    its operator knows to be volatile; so it can make the cache stricter than a tenant's policy and never looser.

    `threshold` and `ttl_s` None leave the tenant's; `live_data` `bypass` holds where the tenant's policy allows them.
    """

    enabled: bool = True
    semantic: bool = True
    threshold: Annotated[float, Meta(ge=0.5, le=1.0)] | None = None
    ttl_s: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    live_data: Literal["policy", "bypass"] = "policy"

    def narrows(self, policy: CachePolicy) -> CachePolicy:
        """`policy` with the stricter one of both in every field."""
        lives = [ttl_s for ttl_s in (policy.ttl_s, self.ttl_s) if ttl_s is not None]
        return msgspec.structs.replace(
            policy,
            enabled=policy.enabled and self.enabled,
            semantic=policy.semantic and self.semantic,
            threshold=max(policy.threshold, self.threshold or 0.0),
            ttl_s=min(lives) if lives else None,
            live_data="bypass" if self.live_data == "bypass" else policy.live_data,
        )


def read_hit_price(text: str) -> int:
    """Parts per million from `free`, `full` or a percentage such as `12.5%`: exact, no float. Raises: ValueError."""
    if not re.fullmatch(_HIT_PRICE, text):
        raise ValueError(
            f"hit_price: {text[:20]!r} is neither free nor full nor a percentage from 0% to 100% with at most four"
            " decimals"
        )
    if text in (FREE, FULL):
        return 0 if text == FREE else 1_000_000
    return int(Decimal(text.removesuffix("%")).scaleb(4))


class CacheDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What may be done. `reason` says why reading (or all) is off; `threshold` and `max_age_s` are the stricter of the
    caller's and the policy's: a life that is shortened binds what was stored before, too."""

    read: bool
    write: bool
    semantic: bool
    reason: Reason
    end_user_scope: bool = False
    threshold: float = DEFAULT_THRESHOLD
    max_age_s: int | None = None

    @property
    def bypass(self) -> bool:
        """Neither read nor written: no key is needed."""
        return not self.read and not self.write


def decide(request: CacheRequest, policy: CachePolicy, *, today: date) -> CacheDecision:
    """The rules of this module's docstring, in their order. `today`: for dates near it."""
    degree = _personal(request)
    reason = _bypass_reason(request, policy, degree, today)
    if reason is not None:
        return CacheDecision(read=False, write=False, semantic=False, reason=reason)
    end_user_scope = policy.personal == "end_user" and degree is not Personal.NONE
    control = request.control
    read, write = not control.no_cache, not control.no_store
    return CacheDecision(
        read=read,
        write=write,
        semantic=policy.semantic and _semantic_allowed(request),
        reason=Reason.NONE if read else Reason.NO_CACHE,
        end_user_scope=end_user_scope and request.end_user is not None,
        threshold=max(policy.threshold, control.threshold or 0.0),
        max_age_s=min((age for age in (control.max_age_s, policy.ttl_s) if age is not None), default=None),
    )


def _bypass_reason(request: CacheRequest, policy: CachePolicy, degree: Personal, today: date) -> Reason | None:
    if not policy.enabled:
        return Reason.DISABLED
    if policy.tools == "bypass" and uses_tools(request):
        return Reason.TOOLS
    if request.retrieval or request.body.get("web_search_options") is not None:
        return Reason.RETRIEVAL
    if policy.live_data == "bypass" and asks_live_data(request, today):
        return Reason.LIVE
    if _param(request, "temperature", 1.0) > policy.max_temperature:
        return Reason.TEMPERATURE
    if policy.personal == "bypass" and degree is not Personal.NONE:
        return Reason.PERSONAL
    if policy.personal == "end_user" and degree is Personal.STATE and request.end_user is None:
        return Reason.PERSONAL
    if request.control.no_cache and request.control.no_store:
        return Reason.NO_STORE
    return None


def asks_live_data(request: CacheRequest, today: date) -> bool:
    """The last user text asks for live data, or follows a question that did ("and in London?")."""
    asked = user_texts(request)
    if not asked:
        return False
    if is_live(asked[-1], today=today):
        return True
    return len(asked) > 1 and len(asked[-1].split()) <= FOLLOW_UP_WORDS and is_live(asked[-2], today=today)


def user_texts(request: CacheRequest) -> list[str]:
    """What the user said, turn by turn, all text parts of a turn together; a completion's prompts."""
    if "messages" in request.body:
        return ["\n".join(text_parts(message)) for message in request.messages if message.get("role") == "user"]
    prompt = request.body.get("prompt")
    prompts = prompt if isinstance(prompt, list | tuple) else [prompt]
    return ["\n".join(text for text in prompts if isinstance(text, str))]


def _personal(request: CacheRequest) -> Personal:
    asked = user_texts(request)
    return personal_degree(asked[-1]) if asked else Personal.NONE


def uses_tools(request: CacheRequest) -> bool:
    """Tools are offered, or the conversation holds a call or a result."""
    if request.body.get("tools") or request.body.get("functions"):
        return True
    return any(
        message.get("role") in ("tool", "function") or message.get("tool_calls") or message.get("function_call")
        for message in request.messages
    )


def _semantic_allowed(request: CacheRequest) -> bool:
    if request.text is None or not request.messages or uses_tools(request):
        return False
    several = _param(request, "n", 1) > 1 or _param(request, "best_of", 1) > 1
    fixed = request.body.get("seed") is not None
    logprobs = request.body.get("logprobs") not in (None, False)
    return not (several or fixed or logprobs)


def _param(request: CacheRequest, name: str, default: float) -> float:
    """A numeric sampling parameter: the body's, else the model's default, else OpenAI's."""
    for source in (request.body, request.defaults):
        value: Mapping[str, Any] | Any = source.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return default

"""What one request carries through admission: who, which limits, what is held, how far it is."""

from __future__ import annotations

from datetime import datetime

import msgspec

from billing.limits.policy import Policy, Rule, hold_key, holds_key
from billing.prices import Rates
from billing.principal import Principal

SLICE_TOKENS = 256  # the first slice of output whose money is held
MAX_SLICE_TOKENS = 4096  # slices double up to here, so that long answers make few trips


class RateInfo(msgspec.Struct, frozen=True):
    """One rate after this request, for x-ratelimit-*: units, and seconds until the bucket is full again."""

    limit: int
    remaining: int
    reset_s: float


class Admitted(msgspec.Struct, frozen=True):
    """Stage 1 passed. `requests` is the tightest request rate, None where there is none."""

    requests: RateInfo | None
    degraded: bool = False


class Held(msgspec.Struct, frozen=True):
    """Stage 2 passed. `granted_output_tokens` may be generated before `extend` must grant more."""

    granted_output_tokens: int
    tokens: RateInfo | None
    degraded: bool = False


class Extended(msgspec.Struct, frozen=True):
    """After a heartbeat. `at_end`: a budget has no room for more than `granted_output_tokens`: cut there."""

    granted_output_tokens: int
    at_end: bool
    degraded: bool = False


class HoldTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What a request may cost: its prompt, the output it asked for (or the model's default), its price.

    `hit` is the ledger's word for the cache that answers (`exact`, `semantic`, `single_flight`), empty for a
    generation: a hit takes no tokens per minute. `exact_nano`: the whole price, known beforehand.
    """

    prompt_tokens: int
    max_output_tokens: int
    rates: Rates
    batch: bool = False
    slice_tokens: int = SLICE_TOKENS
    hit: str = ""
    exact_nano: int | None = None

    @property
    def tokens(self) -> int:
        """What counts against tokens per minute and day."""
        return 0 if self.hit else self.prompt_tokens + self.max_output_tokens

    def amount_nano(self, output_tokens: int) -> int:
        """What is held for the prompt and `output_tokens`, nano-USD."""
        if self.exact_nano is not None:
            return self.exact_nano
        prompt = self.rates.hold_prompt(self.prompt_tokens, batch=self.batch)
        return prompt + self.rates.hold_output(output_tokens, batch=self.batch)


class ReaperMeta(msgspec.Struct, kw_only=True):
    """What lies in the hold for the reaper, who must book and settle without the process that made it."""

    principal: Principal
    request_id: str
    attempt: int
    model: str
    endpoint: str
    upstream: str
    route: str
    service_tier: str
    batch: bool
    stream: bool
    conversation_id: str | None
    end_user: str | None
    tags: dict[str, str]
    accepted_at: datetime
    rates: Rates
    leases: list[str]
    budgets: list[str]
    token_rates: list[tuple[str, int, int]]  # key, capacity, period in us
    hit: str = ""  # as in HoldTerms


class Ticket:
    """One request's way through the stages. Mutable, used by one task at a time."""

    def __init__(
        self,
        principal: Principal,
        model: str,
        request_id: str,
        policy: Policy,
        accepted_at: datetime,
        *,
        endpoint: str = "chat",
    ) -> None:
        self.principal = principal
        self.model = model
        self.request_id = request_id
        self.policy = policy
        self.accepted_at = accepted_at
        # For the row the reaper books when this process dies; the pipeline fills in what it learns.
        self.endpoint = endpoint
        self.attempt = 1
        self.upstream = ""
        self.route = ""
        self.service_tier = "default"
        self.stream = False
        self.conversation_id: str | None = None
        self.end_user: str | None = None
        self.tags: dict[str, str] = {}

        self.hold_key = hold_key(principal.tenant_id, request_id)
        self.holds_key = holds_key(principal.tenant_id)
        self.terms: HoldTerms | None = None
        self.budgets: tuple[tuple[Rule, str], ...] = ()  # with the key of the window the hold was made in
        self.held_nano = 0
        self.held_tokens = 0
        self.granted_output_tokens = 0
        self.at_end = False
        self.prompt_done = 0
        self.cached = 0
        self.output = 0
        self.admitted = False
        self.holding = False
        self.ended = False
        self.lost = False  # the reaper took the hold: cut the stream
        self.degraded = False
        self.redis_left_s = 0.1  # one deadline for all of this request's trips
        self.soft_reached: list[Rule] = []
        self.grace_nano = 0  # taken from the tenant's grace while Redis was away

    def note(self, *, prompt_tokens: int, cached_tokens: int = 0, output_tokens: int) -> None:
        """How far the request is; goes into the hold with the next heartbeat, for the reaper."""
        self.prompt_done, self.cached, self.output = prompt_tokens, cached_tokens, output_tokens

    @property
    def needs_extension(self) -> bool:
        """True once half of what is granted is used and more may be wanted."""
        terms = self.terms
        if terms is None or self.at_end or self.granted_output_tokens >= terms.max_output_tokens:
            return False
        return self.granted_output_tokens - self.output <= max(terms.slice_tokens // 2, 1)

    @property
    def token_rates(self) -> tuple[Rule, ...]:
        """The rates in tokens that this request counts against: none for an answer served again."""
        return () if self.terms is not None and self.terms.hit else self.policy.hold_rates

    def meta(self) -> bytes:
        """ReaperMeta, encoded."""
        assert self.terms is not None
        meta = ReaperMeta(
            principal=self.principal,
            request_id=self.request_id,
            attempt=self.attempt,
            model=self.model,
            endpoint=self.endpoint,
            upstream=self.upstream,
            route=self.route,
            service_tier=self.service_tier,
            batch=self.terms.batch,
            stream=self.stream,
            conversation_id=self.conversation_id,
            end_user=self.end_user,
            tags=self.tags,
            accepted_at=self.accepted_at,
            rates=self.terms.rates,
            leases=[rule.key for rule in self.policy.leases],
            budgets=[key for _, key in self.budgets],
            token_rates=[(rule.key, rule.capacity, rule.period_us) for rule in self.token_rates],
            hit=self.terms.hit,
        )
        return msgspec.msgpack.encode(meta)

"""Answers already paid for, as the pipeline asks for them: what may be looked up, what was found, what is stored."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from datetime import date, datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from cache.entry import CachedAnswer, CachedChoice, CachedToolCall, CachedUsage, why_not_stored
from cache.errors import UncacheableRequest
from cache.keys import TenantKeys
from cache.outcome import Outcome, Reason
from cache.partition import exact_key, partition_digest
from cache.policy import CacheDecision, CachePolicy, TenantCachePolicy, decide
from cache.request import CacheRequest
from cache.semantic import SemanticCache, SemanticHit
from cache.store import CacheEntry, ExactLookup, ExactResult, Put, RedisStore
from cache.vectors import pack_vectors
from engine.types import TokenLogprob
from gateway.calls import Call, Choice, Counts, Endpoint, Piece, ToolCallPiece
from gateway.routing import Route

log = logging.getLogger(__name__)

_EMBED_TIMEOUT_S = 0.5
_CACHED_ENDPOINTS = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})


class Lookup(msgspec.Struct, kw_only=True):
    """What may be done for one request. `stage` shares the admission's Redis trip; `flight_key` is None where a
    generation must not be shared. `vector` is filled in by the semantic lookup and stored with the answer. `alone`: a
    generation is shared in this process only, as Redis did not answer the exact lookup or must not hold the answer."""

    decision: CacheDecision
    request: CacheRequest | None = None
    policy: CachePolicy
    partition: str = ""
    entry_id: str = ""
    stage: ExactLookup | None = None
    vector: bytes | None = None
    alone: bool = False

    @property
    def flight_key(self) -> str | None:
        return self.entry_id if self.decision.read and self.entry_id else None


class Remembering(msgspec.Struct, frozen=True):
    """The stage that stores an answer, and the tenant's keys for removing what must leave for it."""

    stage: Put
    keys: TenantKeys


class Found(msgspec.Struct, kw_only=True):
    """How a lookup came out. `counts` are the answer's tokens: what the client is told, and what was saved.

    `similarity` is the cosine to the question that was found, also where a guard refused it; `age_s` the answer's age.
    """

    outcome: Outcome
    reason: Reason = Reason.NONE
    answer: CachedAnswer | None = None
    similarity: float | None = None
    age_s: float | None = None

    @property
    def booked_as(self) -> str:
        """The ledger's word, by which reports count: an exact hit and a shared generation are told apart."""
        if self.outcome is not Outcome.HIT:
            return self.outcome
        return "single_flight" if self.reason is Reason.FLIGHT else "exact"

    @property
    def header(self) -> str:
        """The value of `x-weir-cache`: the outcome, then what is known of reason, similarity and age (whole seconds).

        The similarity is cut, not rounded: a refused 0.9499 must not read as the threshold it did not reach.
        """
        words = [str(self.outcome)]
        if self.reason is not Reason.NONE:
            words.append(f"reason={self.reason}")
        if self.similarity is not None:
            words.append(f"similarity={math.floor(self.similarity * 1000) / 1000:.3f}")
        if self.age_s is not None:
            words.append(f"age={int(self.age_s)}")
        return "; ".join(words)

    @property
    def hit(self) -> bool:
        return self.answer is not None

    @property
    def counts(self) -> Counts:
        assert self.answer is not None
        usage = self.answer.usage
        return Counts(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            reasoning_tokens=usage.reasoning_tokens,
        )

    def pieces(self) -> list[Piece]:
        """The whole answer, one piece a choice."""
        assert self.answer is not None
        return [_piece(choice) for choice in self.answer.choices]


class ResponseCache:
    """Exact and semantic lookups under each tenant's policy."""

    def __init__(
        self,
        store: RedisStore | None,
        semantic: SemanticCache | None,
        policy: CachePolicy,
        *,
        embedder_fingerprint: str = "none",
        deadline_s: float = 0.1,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Args: store None: nothing is cached; policy is the server's, a tenant's own replaces its fields."""
        self._store = store
        self._semantic = semantic
        self._policy = policy
        self._fingerprint = embedder_fingerprint
        self._deadline_s = deadline_s
        self._clock = clock

    @property
    def is_semantic(self) -> bool:
        """Whether answers are looked for by meaning too."""
        return self._semantic is not None

    def add_semantic(self, semantic: SemanticCache) -> None:
        """From now on it answers too: its embedder, whose fingerprint was given at the start, runs."""
        self._semantic = semantic

    def prepare(self, call: Call, route: Route) -> Lookup:
        """Decides by policy, and makes the keys where anything may be read or written."""
        policy = self._policy_of(call)
        if route.cache is not None:
            policy = route.cache.narrows(policy)
        request = CacheRequest(
            tenant=call.principal.tenant_id,
            project=call.principal.project_id,
            model=route.name if len(route.targets) > 1 else route.targets[0].upstream.model,
            model_revision="|".join(sorted(target.upstream.revision for target in route.targets)),
            body=call.body,
            end_user=call.attribution.end_user,
            endpoint=call.endpoint,
            retrieval=call.retrieval,
            control=call.cache_control,
        )
        if self._store is None or not _replayable(call):
            reason = Reason.DISABLED if self._store is None else Reason.UNKEYABLE
            return Lookup(decision=_bypass(reason), policy=policy)
        decision = decide(request, policy, today=self._today(call.principal.time_zone))
        if decision.bypass:
            return Lookup(decision=decision, policy=policy)
        try:
            partition = partition_digest(
                request, embedder_fingerprint=self._fingerprint, end_user_scope=decision.end_user_scope
            )
        except UncacheableRequest:
            return Lookup(decision=_bypass(Reason.UNKEYABLE), policy=policy)
        entry_id = exact_key(partition, request.text)
        stage = self._store.lookup(request.tenant, entry_id, partition, max_age_s=decision.max_age_s)
        return Lookup(
            decision=decision,
            request=request,
            policy=policy,
            partition=partition,
            entry_id=entry_id,
            stage=stage if decision.read else None,
        )

    def _today(self, time_zone: str) -> date:
        return datetime.fromtimestamp(self._clock(), ZoneInfo(time_zone)).date()

    def _policy_of(self, call: Call) -> CachePolicy:
        own = call.principal.cache_policy
        if not own:
            return self._policy
        try:
            return msgspec.convert(own, TenantCachePolicy).over(self._policy)
        except (ValueError, OverflowError) as exc:  # msgspec's ValidationError is a ValueError
            log.warning("the cache policy of tenant %s is not used: %s", call.principal.tenant_slug, exc)
        return self._readable(own)

    def _readable(self, own: dict[str, Any]) -> CachePolicy:
        """The server's policy, with what must not get lost of a tenant's that cannot be read: that it wants no cache,
        and what a hit costs. Where that price cannot be read either, nothing is served again."""
        if own.get("enabled") is False:
            return msgspec.structs.replace(self._policy, enabled=False)
        try:
            return msgspec.structs.replace(self._policy, hit_price=own.get("hit_price", self._policy.hit_price))
        except (ValueError, TypeError, AttributeError):
            return msgspec.structs.replace(self._policy, enabled=False)

    async def look_up(self, lookup: Lookup, exact: ExactResult | None) -> Found:
        """The exact answer if there is one, else the nearest question's. Trouble is a miss, never an error."""
        decision = lookup.decision
        lookup.alone = exact is None or exact.version is None or not decision.write
        if not decision.read:
            return Found(outcome=Outcome.BYPASS, reason=decision.reason)
        if exact is None:
            return Found(outcome=Outcome.MISS, reason=Reason.STORE)
        if exact.answer is not None:
            return Found(outcome=Outcome.HIT, answer=exact.answer, age_s=exact.age_s)
        if self._semantic is None or not decision.semantic:
            return Found(outcome=Outcome.MISS, reason=exact.reason)
        return await self._nearest(lookup, exact)

    async def _nearest(self, lookup: Lookup, exact: ExactResult) -> Found:
        assert self._semantic is not None
        assert lookup.request is not None
        found = await self._semantic.lookup(
            lookup.request.tenant,
            lookup.partition,
            exact.version,
            lookup.request.text or "",
            threshold=lookup.decision.threshold,
            rerank_below=lookup.policy.rerank_below,
            max_age_s=lookup.decision.max_age_s,
            timeout_s=self._deadline_s,
        )
        if isinstance(found, SemanticHit):
            return Found(outcome=Outcome.SEMANTIC, answer=found.answer, similarity=found.similarity, age_s=found.age_s)
        lookup.vector = found.vector
        return Found(outcome=Outcome.MISS, reason=found.reason, similarity=found.similarity)

    async def embed_refreshed(self, lookup: Lookup) -> None:
        """Fills in the vector of a question that was asked with `no-cache`: what was generated is found by meaning
        later, as any other answer. Called after the answer, for it takes milliseconds."""
        decision = lookup.decision
        if self._semantic is None or lookup.request is None or decision.read or not decision.write:
            return
        if not decision.semantic or lookup.vector is not None:
            return
        embedding = await self._semantic.embed(lookup.request.text or "", timeout_s=_EMBED_TIMEOUT_S)
        if not isinstance(embedding, Reason):
            lookup.vector = pack_vectors([embedding.vector])[0]

    def entry(self, lookup: Lookup, call: Call, counts: Counts, choices: list[Choice]) -> Remembering | None:
        """The stage that stores the answer, None where it must not be stored."""
        if self._store is None or lookup.request is None or not lookup.decision.write:
            return None
        answer = as_answer(call, counts, choices, created=int(self._clock()))
        policy = lookup.policy
        if why_not_stored(answer, max_bytes=policy.max_answer_bytes, allow_tool_calls=policy.tools == "exact"):
            return None
        request = lookup.request
        stage = self._store.put(
            CacheEntry(
                tenant=request.tenant,
                project=request.project,
                model=request.model,
                entry_id=lookup.entry_id,
                partition=lookup.partition,
                embedder_fingerprint=self._fingerprint,
                text=request.text or "",
                answer=answer,
                vector=lookup.vector,
                end_user=request.end_user if lookup.decision.end_user_scope else None,
                tags=request.tags,
                ttl_s=policy.ttl_s,
                max_entries=policy.max_entries,
                max_bytes=policy.max_bytes,
            )
        )
        return Remembering(stage=stage, keys=self._store.keys(request.tenant))


def as_answer(call: Call, counts: Counts, choices: list[Choice], *, created: int) -> CachedAnswer:
    """What was generated for `call`, as it is remembered. Args: created, Unix seconds."""
    return CachedAnswer(
        model=call.model,
        created=created,
        request_id=call.request_id,
        choices=tuple(_cached_choice(choice) for choice in sorted(choices, key=lambda each: each.index)),
        usage=CachedUsage(
            prompt_tokens=counts.prompt_tokens,
            completion_tokens=counts.completion_tokens,
            cached_tokens=counts.cached_tokens,
            reasoning_tokens=counts.reasoning_tokens,
        ),
        num_choices=call.num_choices,
    )


def _bypass(reason: Reason) -> CacheDecision:
    return CacheDecision(read=False, write=False, semantic=False, reason=reason)


def _replayable(call: Call) -> bool:
    """Token ids and prompt log-probabilities are not remembered, so requests for them cannot be replayed."""
    if call.endpoint not in _CACHED_ENDPOINTS:
        return False
    return not call.body.get("return_token_ids") and call.sampling.prompt_logprobs is None


def _cached_choice(choice: Choice) -> CachedChoice:
    return CachedChoice(
        index=choice.index,
        content=choice.text or None,
        reasoning_content=choice.reasoning or None,
        tool_calls=tuple(
            CachedToolCall(id=call.id or "", name=call.name or "", arguments=call.arguments)
            for call in choice.tool_calls
        ),
        finish_reason=choice.finish_reason,
        logprobs=[_logprob_dict(entry) for entry in choice.logprobs] if choice.logprobs is not None else None,
    )


def _piece(choice: CachedChoice) -> Piece:
    return Piece(
        index=choice.index,
        text=choice.content or "",
        reasoning=choice.reasoning_content or "",
        tool_calls=[
            ToolCallPiece(index=number, id=call.id, name=call.name, arguments=call.arguments)
            for number, call in enumerate(choice.tool_calls)
        ],
        logprobs=[_logprob(entry) for entry in choice.logprobs] if choice.logprobs is not None else None,
        finish_reason=choice.finish_reason,
    )


def _logprob_dict(entry: TokenLogprob) -> dict[str, Any]:
    return {
        "id": entry.token_id,
        "token": entry.text,
        "bytes": entry.bytes,
        "logprob": entry.logprob,
        "top": [_logprob_dict(other) for other in entry.top],
    }


def _logprob(entry: dict[str, Any]) -> TokenLogprob:
    return TokenLogprob(
        token_id=entry["id"],
        text=entry["token"],
        bytes=entry["bytes"],
        logprob=entry["logprob"],
        top=tuple(_logprob(other) for other in entry["top"]),
    )

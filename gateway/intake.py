"""What every inference endpoint reads the same way: who calls, for whom, how urgently, until when, cached or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from billing.principal import Principal
from cache.request import CacheControl
from engine.types import Priority, SamplingParams
from gateway.attribution import attribution_of
from gateway.calls import Call, Endpoint, OutputParser
from gateway.errors import InvalidRequest
from gateway.sampling import priority_of, tier_of

MAX_TIMEOUT_HEADER_S = 86_400.0


class Origin(Protocol):
    """Where a request comes from: an HTTP request behind its guard, or a line of a batch (`state["batch"]`)."""

    @property
    def scope(self) -> Any:
        """Its `state` holds the principal and the request's id."""

    @property
    def headers(self) -> Mapping[str, str]: ...


class Intake:
    """One request's common part. `timeout_s` is the server's limit; a client's own `x-weir-timeout` may be shorter."""

    def __init__(self, request: Origin, endpoint: Endpoint, data: Any, *, timeout_s: float) -> None:
        self.accepted_at = time.monotonic()
        state: Mapping[str, Any] = request.scope["state"]
        self.principal: Principal = state["principal"]
        self.request_id: str = state["request_id"]
        self._batch = bool(state.get("batch"))
        self._headers = request.headers
        self._endpoint = endpoint
        self._data = data
        self._timeout_s = timeout_s
        self.body: dict[str, Any] = msgspec.to_builtins(data)

    def call(
        self,
        *,
        prompts: list[list[int]],
        sampling: SamplingParams,
        new_parser: Callable[[], OutputParser] | None = None,
        dropped_turns: int = 0,
    ) -> Call:
        """Raises: InvalidRequest for headers that cannot be read; InvalidCacheControl."""
        data, principal = self._data, self.principal
        tier = tier_of(getattr(data, "service_tier", None), principal.max_service_tier)
        return Call(
            request_id=self.request_id,
            endpoint=self._endpoint,
            principal=principal,
            model=data.model,
            prompts=prompts,
            sampling=sampling,
            body=self.body,
            stream=bool(getattr(data, "stream", False)),
            deadline=self.accepted_at + self._timeout(),
            own_deadline="x-weir-timeout" in self._headers,
            attribution=attribution_of(
                self._headers,
                metadata=data.metadata,
                user=data.user,
                safety_identifier=data.safety_identifier,
                key_tags=principal.tags,
                messages=self.body.get("messages"),
                project_id=principal.project_id,
            ),
            cache_control=self._cache_control(),
            priority=Priority.BATCH
            if self._batch
            else priority_of(tier, getattr(data, "priority", None), principal.max_priority),
            batch=self._batch,
            service_tier=tier,
            new_parser=new_parser,
            dropped_turns=dropped_turns,
            prefer_cheaper=self._headers.get("x-weir-prefer", "").strip().lower() == "cheaper",
            accepted_at=self.accepted_at,
        )

    def _timeout(self) -> float:
        value = self._headers.get("x-weir-timeout")
        if value is None:
            return self._timeout_s
        return min(self._timeout_s, _positive(value, "x-weir-timeout", MAX_TIMEOUT_HEADER_S))

    def _cache_control(self) -> CacheControl:
        header = self._headers.get("x-weir-cache-control") or self._headers.get("cache-control")
        value = self._headers.get("x-weir-cache-threshold")
        threshold = None if value is None else _positive(value, "x-weir-cache-threshold", 1.0)
        return CacheControl.parse(header, threshold=threshold)


def _positive(text: str, name: str, limit: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= limit:  # refuses NaN too
        raise InvalidRequest(f"Invalid header '{name}': expected a number above 0 and at most {limit:g}.", param=name)
    return value

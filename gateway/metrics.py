"""Prometheus metrics: our own names (`gateway_*`) and, beside them, vLLM's, so that its dashboards work unchanged.

No label holds a value that a caller can invent: models are those the router knows, routes are templates. Children of
labelled metrics are kept, as `.labels()` takes a lock on every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from billing.deadline import REDIS_GIVEN_UP, Waits
from engine.types import EngineStats

_LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_GAP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)


class Metrics:
    """One gateway process's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._http = self._counter("gateway_http_requests", "HTTP requests answered", "route", "status")
        self._http_seconds = self._histogram("gateway_http_seconds", "HTTP request to last byte", "route")
        self._requests = self._counter(
            "gateway_requests", "inference requests by how they ended", "endpoint", "model", "status"
        )
        self._ttft = self._histogram("gateway_ttft_seconds", "accepted to first token", "endpoint", "model")
        self._e2e = self._histogram("gateway_e2e_seconds", "accepted to finished", "endpoint", "model")
        self._itl = self._histogram(
            "gateway_itl_seconds", "gap between two deliveries of one stream", "model", buckets=_GAP_BUCKETS
        )
        self._tokens = self._counter("gateway_tokens", "tokens by class", "model", "kind")
        self._cache = self._counter("gateway_cache_lookups", "cache lookups by outcome", "outcome", "reason")
        self._shadow = self._counter("gateway_cache_shadow_checks", "semantic hits generated again", "verdict")
        self._refused = self._counter("gateway_refused_requests", "requests refused by a limit", "limit")
        self._upstream = self._counter("gateway_upstream_attempts", "attempts by upstream", "upstream", "result")
        self.in_flight = Gauge("gateway_requests_in_flight", "inference requests now", registry=self.registry)
        self._vllm_ttft = self._histogram("vllm:time_to_first_token_seconds", "as vLLM's", "model_name")
        self._vllm_e2e = self._histogram("vllm:e2e_request_latency_seconds", "as vLLM's", "model_name")
        self._vllm_itl = self._histogram(
            "vllm:inter_token_latency_seconds", "as vLLM's", "model_name", buckets=_GAP_BUCKETS
        )

    def _counter(self, name: str, text: str, *labels: str) -> Callable[..., Counter]:
        metric = Counter(name, text, labels, registry=self.registry)
        return lru_cache(maxsize=4096)(metric.labels)

    def _histogram(
        self, name: str, text: str, *labels: str, buckets: tuple[float, ...] = _LATENCY_BUCKETS
    ) -> Callable[..., Histogram]:
        metric = Histogram(name, text, labels, registry=self.registry, buckets=buckets)
        return lru_cache(maxsize=4096)(metric.labels)

    def http_request(self, route: str, status: int, seconds: float) -> None:
        """One HTTP request answered. `route` is a path template."""
        self._http(route, str(status)).inc()
        self._http_seconds(route).observe(seconds)

    def first_token(self, endpoint: str, model: str, seconds: float) -> None:
        """TTFT of one inference request."""
        self._ttft(endpoint, model).observe(seconds)
        self._vllm_ttft(model).observe(seconds)

    def gap(self, model: str, seconds: float) -> None:
        """ITL: the time between two deliveries of one request."""
        self._itl(model).observe(seconds)
        self._vllm_itl(model).observe(seconds)

    def finished(
        self, endpoint: str, model: str, status: str, seconds: float, *, prompt: int, cached: int, completion: int
    ) -> None:
        """One inference request ended; token counts as billed."""
        self._requests(endpoint, model, status).inc()
        self._e2e(endpoint, model).observe(seconds)
        self._vllm_e2e(model).observe(seconds)
        self._tokens(model, "prompt").inc(prompt)
        self._tokens(model, "cached_prompt").inc(cached)
        self._tokens(model, "completion").inc(completion)

    def cache_lookup(self, outcome: str, reason: str) -> None:
        self._cache(outcome, reason).inc()

    def shadow_check(self, verdict: str) -> None:
        """`verdict`: same, wrong or undecided."""
        self._shadow(verdict).inc()

    def refused(self, limit: str) -> None:
        self._refused(limit).inc()

    def upstream_attempt(self, upstream: str, result: str) -> None:
        """`result`: ok, retryable, failed or open (the breaker)."""
        self._upstream(upstream, result).inc()

    def watch_engines(self, stats: Callable[[], Mapping[str, EngineStats]]) -> None:
        """Exports each engine's last reading, by its model's name, at every scrape."""
        self.registry.register(_EngineCollector(stats))

    def watch_limits(self, degraded: Callable[[], int], outages: Callable[[], int]) -> None:
        """Exports, at every scrape, requests admitted by local limits, and outages of the limits' Redis that ended."""
        self.registry.register(_LimitsCollector(degraded, outages))

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)


class _LimitsCollector(Collector):
    """How the limits fare without Redis, and how long anybody waited for it in vain: the deadline, as it was kept."""

    def __init__(self, degraded: Callable[[], int], outages: Callable[[], int]) -> None:
        self._degraded, self._outages = degraded, outages

    def collect(self) -> Iterator[Metric]:
        name = "gateway_degraded_requests"
        yield CounterMetricFamily(name, "requests under local limits, Redis being away", self._degraded())
        name = "gateway_redis_outages"
        yield CounterMetricFamily(name, "times Redis was away and came back", self._outages())
        text = "waits for Redis that ended at their deadline: as it counts, in the loop's turns, and by the clock"
        family = HistogramMetricFamily("gateway_redis_given_up_seconds", text, labels=["by"])
        for label, waits in (("deadline", REDIS_GIVEN_UP.counted), ("clock", REDIS_GIVEN_UP.by_clock)):
            family.add_metric([label], _buckets(waits), waits.total_s)
        yield family


def _buckets(waits: Waits) -> list[tuple[str, float]]:
    """Prometheus's: each holds all that are below it too."""
    bounds = (*map(str, waits.BOUNDS), "+Inf")
    return list(zip(bounds, map(float, accumulate(waits.counts)), strict=True))


class _EngineCollector(Collector):
    """vLLM's names over readings of EngineStats, by model."""

    def __init__(self, stats: Callable[[], Mapping[str, EngineStats]]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for model, stats in self._stats().items():
            for family in _families(model, stats):
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples.extend(family.samples)
        yield from families.values()


def _families(model: str, stats: EngineStats) -> Iterator[Metric]:
    used = 1 - (stats.kv_blocks_free + stats.kv_blocks_cached) / stats.kv_blocks_total if stats.kv_blocks_total else 0
    gauges = {
        "vllm:num_requests_running": stats.num_running,
        "vllm:num_requests_waiting": stats.num_waiting,
        "vllm:kv_cache_usage_perc": used,
        "engine_kv_blocks": stats.kv_blocks_total,
        "engine_kv_blocks_free": stats.kv_blocks_free,
        "engine_kv_blocks_cached": stats.kv_blocks_cached,
    }
    counters = {
        "vllm:num_preemptions": stats.num_preemptions,
        "vllm:prompt_tokens": stats.prompt_tokens,
        "vllm:generation_tokens": stats.generation_tokens,
        "vllm:prefix_cache_queries": stats.prefix_cache_queries,
        "vllm:prefix_cache_hits": stats.prefix_cache_hits,
        "vllm:spec_decode_num_drafts": stats.num_drafts,
        "vllm:spec_decode_num_draft_tokens": stats.num_draft_tokens,
        "vllm:spec_decode_num_accepted_tokens": stats.num_accepted_tokens,
        "engine_steps": stats.num_steps,
        "engine_busy_microseconds": stats.busy_us,
        "engine_idle_microseconds": stats.idle_us,
    }
    for name, value in gauges.items():
        gauge = GaugeMetricFamily(name, "of the engine", labels=["model_name"])
        gauge.add_metric([model], value)
        yield gauge
    for name, count in counters.items():
        counter = CounterMetricFamily(name, "of the engine", labels=["model_name"])
        counter.add_metric([model], count)
        yield counter
    success = CounterMetricFamily("vllm:request_success", "as vLLM's", labels=["model_name", "finished_reason"])
    for reason, ended in stats.finished.items():
        success.add_metric([model, reason], ended)
    yield success

"""`POST /admin/v1/routes/{name}/test`: one token from every target, past the breakers, paid by nobody."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import Any

from billing.ids import new_id
from billing.principal import Principal
from engine.errors import EngineError
from engine.types import SamplingParams
from gateway.calls import Call, Endpoint
from gateway.errors import GatewayError
from gateway.routing import Route, Target
from gateway.schemas.admin.routing import RouteTrial, TargetTrial
from gateway.upstreams.base import UpstreamError

TRIAL_TIMEOUT_S = 20.0
_MESSAGES = [{"role": "user", "content": "ping"}]


async def try_route(route: Route, principal: Principal, prompt: list[int]) -> RouteTrial:
    """All targets side by side. Args: prompt is the trial's message as token ids."""
    targets = [*route.targets, *([route.canary] if route.canary is not None else [])]
    trials = await asyncio.gather(*(_try(target, principal, prompt) for target in targets))
    return RouteTrial(name=route.name, targets=list(trials))


async def _try(target: Target, principal: Principal, prompt: list[int]) -> TargetTrial:
    begun = time.monotonic()
    error = None
    try:
        async with asyncio.timeout(TRIAL_TIMEOUT_S):
            stream: Any = target.upstream.generate(_call(target, principal, prompt), 0)
            async with aclosing(stream) as steps:
                await anext(steps)
    except TimeoutError:
        error = f"no token within {TRIAL_TIMEOUT_S:g} s"
    except StopAsyncIteration:
        error = "no answer"
    except (UpstreamError, EngineError, GatewayError) as exc:
        error = str(exc)[:300]
    return TargetTrial(
        target=target.label,
        breaker=target.breaker.state,
        ok=error is None,
        latency_ms=round((time.monotonic() - begun) * 1000, 2),
        error=error,
    )


def _call(target: Target, principal: Principal, prompt: list[int]) -> Call:
    return Call(
        request_id=new_id("trial"),
        endpoint=Endpoint.CHAT,
        principal=principal,
        model=target.upstream.model,
        prompts=[prompt],
        sampling=SamplingParams(max_tokens=1, temperature=0.0),
        body={"messages": _MESSAGES, "max_tokens": 1},
        stream=False,
        deadline=time.monotonic() + TRIAL_TIMEOUT_S,
    )

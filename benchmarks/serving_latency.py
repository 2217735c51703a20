"""Latency under Poisson arrivals: TTFT, ITL and E2E at p50, p90 and p99, and goodput, against the arrival rate.

    python benchmarks/serving_latency.py --url http://127.0.0.1:8000 --api-key KEY --model NAME --rates 2 4 8
    python benchmarks/serving_latency.py --engine --rates 10 20 30 --long-every-s 5    # the engine alone, on this GPU
    python benchmarks/serving_latency.py --engine --rates 28 60 --long-every-s 5 --steps 512:256 256:128

Over HTTP prompts go to /v1/completions as token ids and answers are streamed. With --engine the same arrivals meet the
engine core of a Llama-3-8B shape with random weights, which is what the card itself allows. TTFT is counted from the
moment a request is due, so that a server that falls behind cannot hide it. A request is good when its TTFT and its
mean gap stay within --good-ttft-ms and --good-itl-ms.

A step is budget:chunk: tokens a step, and of them the most from one prompt. `keeps_up_rps` is the rate of requests that
the tokens put out in the second half of the arrivals amount to: at a rate beyond it, the rate that saturates.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import engine_throughput, results_file, workloads  # noqa: E402

RESULTS = results_file.FOLDER / "serving_latency.csv"


@dataclass
class Request:
    """One arrival and, once served, when each of its tokens came; all seconds from the start of the run."""

    due_s: float
    prompt: list[int]
    outputs: int
    token_s: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        return self.token_s[0] - self.due_s

    @property
    def gaps_s(self) -> list[float]:
        return [b - a for a, b in zip(self.token_s, self.token_s[1:], strict=False)]


def arrivals(rate: float, duration_s: float, long_every_s: float, long_tokens: int, seed: int) -> list[Request]:
    """Poisson arrivals of ShareGPT-like lengths, and a long prompt every `long_every_s` seconds (0: none)."""
    random = Random(seed)
    lengths = [(len(prompt), outputs) for prompt, outputs in workloads.sharegpt_like(500, seed)]
    made, now = [], 0.0
    while (now := now + random.expovariate(rate)) < duration_s:
        prompt_len, outputs = random.choice(lengths)
        made.append(Request(now, workloads._ids(random, prompt_len), outputs))
    if long_every_s:
        for i in range(1, int(duration_s / long_every_s) + 1):
            made.append(Request(i * long_every_s, workloads._ids(random, long_tokens), 64))
    return sorted(made, key=lambda request: request.due_s)


def run_engine(core: Any, requests: list[Request]) -> float:
    """Seconds until the last token; the loop is the engine's own: due requests in, one step, tokens out."""
    from engine.types import EngineRequest, SamplingParams

    salt = os.urandom(32)
    by_name = {f"{salt.hex()[:8]}-{i}": request for i, request in enumerate(requests)}
    waiting = iter(by_name.items())
    upcoming = next(waiting, None)
    started = time.perf_counter()
    while upcoming is not None or core.has_work:
        now = time.perf_counter() - started
        while upcoming is not None and upcoming[1].due_s <= now:
            name, request = upcoming
            sampling = SamplingParams(temperature=0.0, max_tokens=request.outputs, ignore_eos=True)
            core.add(core.accept(EngineRequest(
                request_id=name, prompt_token_ids=request.prompt, sampling=sampling, cache_salt=salt,
            )))  # fmt: skip
            upcoming = next(waiting, None)
        if not core.has_work:
            continue  # the next arrival is milliseconds away
        outputs = core.step()
        now = time.perf_counter() - started
        for output in outputs:
            by_name[output.request_id].token_s.extend([now] * len(output.token_ids))
    return time.perf_counter() - started


async def run_http(args: argparse.Namespace, requests: list[Request]) -> float:
    import aiohttp

    headers = {"Authorization": f"Bearer {args.api_key}"}
    timeout = aiohttp.ClientTimeout(total=None)
    started = time.perf_counter()

    async def one(session: aiohttp.ClientSession, request: Request) -> None:
        await asyncio.sleep(request.due_s - (time.perf_counter() - started))
        body = {
            "model": args.model, "prompt": request.prompt, "max_tokens": request.outputs, "temperature": 0,
            "ignore_eos": True, "stream": True,
        }  # fmt: skip
        async with session.post(f"{args.url}/v1/completions", json=body, headers=headers) as response:
            response.raise_for_status()
            async for line in response.content:
                if line.startswith(b"data: {") and json.loads(line[6:])["choices"]:
                    request.token_s.append(time.perf_counter() - started)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        await asyncio.gather(*(one(session, request) for request in requests))
    return time.perf_counter() - started


def keeps_up_rps(requests: list[Request], duration_s: float) -> float:
    """Output tokens a second in the second half of the arrivals, over the outputs of a request."""
    half = duration_s / 2
    made = sum(1 for request in requests for now in request.token_s if half <= now < duration_s)
    return made / half / statistics.fmean(request.outputs for request in requests)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summarise(args: argparse.Namespace, case: str, requests: list[Request], seconds: float) -> dict[str, Any]:
    served = [request for request in requests if request.token_s]
    gaps = [gap for request in served for gap in request.gaps_s]
    series = {
        "ttft": [request.ttft_s for request in served],
        "itl": gaps,
        "e2e": [request.token_s[-1] - request.due_s for request in served],
    }
    good = [
        request for request in served
        if request.ttft_s * 1e3 <= args.good_ttft_ms
        and (not request.gaps_s or statistics.fmean(request.gaps_s) * 1e3 <= args.good_itl_ms)
    ]  # fmt: skip
    row: dict[str, Any] = {
        "requests": len(requests),
        "seconds": round(seconds, 2),
        "out_tok_s": round(sum(len(request.token_s) for request in served) / seconds, 1),
        "goodput_rps": round(len(good) / seconds, 2),
    }
    for name, values in series.items():
        for share in (50, 90, 99):
            row[f"{name}_p{share}_ms"] = round(1e3 * percentile(values, share / 100), 2)
    row["keeps_up_rps"] = round(keeps_up_rps(requests, args.duration_s), 1)
    print(f"rate {case}: " + ", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    return row


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", nargs="+", type=float, default=[2, 4, 8], help="requests a second")
    parser.add_argument("--duration-s", type=float, default=30.0)
    parser.add_argument("--long-every-s", type=float, default=0.0, help="a 16k-token prompt every so many seconds")
    parser.add_argument("--long-tokens", type=int, default=16384)
    parser.add_argument("--good-ttft-ms", type=float, default=500.0)
    parser.add_argument("--good-itl-ms", type=float, default=50.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--model", default="llama-3-8b")
    parser.add_argument("--engine", action="store_true", help="drive the engine core itself, no HTTP")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--steps", nargs="+", default=["512:256"], metavar="BUDGET:CHUNK", help="with --engine")
    parser.add_argument("--config", help="a config.json of another shape; default: Llama-3-8B's")
    parser.add_argument("--settings", default="{}", help="more engine settings, as JSON")
    parser.add_argument("--commit", default="", help="recorded instead of git's HEAD")
    args = parser.parse_args()
    args.enforce_eager, args.stream_interval, args.model_name, args.model_folder = False, 1, args.model, ""
    return args


def main() -> None:
    args = parse()
    rows: list[dict[str, Any]] = []
    steps = [tuple(int(part) for part in step.split(":")) for step in args.steps]
    args.max_num_batched_tokens = max(budget for budget, _ in steps)
    if not args.engine:
        for rate in args.rates:
            requests = make_requests(args, rate)
            rows.append(record(args, rate, "http", "", requests, asyncio.run(run_http(args, requests))))
    else:
        from engine.startup import StartupReport

        core = engine_throughput.make_core(args, engine_throughput.shape_of(args), StartupReport())
        engine_throughput.run_workload(core, workloads.sharegpt_like(16))
        for budget, chunk in steps:
            core.scheduler.limits = replace(
                core.scheduler.limits, max_num_batched_tokens=budget, long_prefill_token_threshold=chunk
            )
            for rate in args.rates:
                requests = make_requests(args, rate)
                rows.append(record(args, rate, "engine", f"{budget}:{chunk}", requests, run_engine(core, requests)))
    results_file.append(RESULTS, list(rows[0]), rows)


def make_requests(args: argparse.Namespace, rate: float) -> list[Request]:
    return arrivals(rate, args.duration_s, args.long_every_s, args.long_tokens, args.seed)


def record(
    args: argparse.Namespace, rate: float, path: str, step: str, requests: list[Request], seconds: float
) -> dict[str, Any]:
    row = summarise(args, f"{rate} {step}", requests, seconds)
    return {
        **engine_throughput.versions(args), "path": path, "rate_rps": rate, "long_every_s": args.long_every_s,
        "chunk_tokens": step, **row,
    }  # fmt: skip


if __name__ == "__main__":
    main()

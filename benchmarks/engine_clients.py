"""The inline client against the child client: TTFT, gap between tokens and throughput at several numbers of streams.

    python -m benchmarks.engine_clients --model smollm2 --streams 1,8,16 --tokens 64
    python -m benchmarks.engine_clients --model llama-3-8b-folder --load-format dummy --streams 1,64,256

Both run the same model in the same run, one after the other; the event loop is also kept busy for a share of the time
(`--loop-load 0.3`), as a gateway's is, because that is what the child is for. Prints a row a client and stream count.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.child_client import ChildClient
from engine.client import EngineClient
from engine.config import EngineConfig
from engine.types import EngineRequest, SamplingParams


async def one_stream(client: EngineClient, number: int, prompt: int, tokens: int) -> tuple[float, list[float]]:
    """(seconds to the first token, gaps between deltas)."""
    request = EngineRequest(
        request_id=f"bench-{number}-{time.perf_counter_ns()}",
        prompt_token_ids=[1000 + (number * 7919 + i * 31) % 40000 for i in range(prompt)],
        sampling=SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True),
        cache_salt=b"engine-clients-bench",
    )
    last = time.perf_counter()
    times = []
    async for _ in client.generate(request):
        now = time.perf_counter()
        times.append(now - last)
        last = now
    return times[0], times[1:]


async def keep_busy(share: float) -> None:
    """Holds the interpreter's lock for `share` of the time in slices of a millisecond, as request handling does."""
    while True:
        until = time.perf_counter() + 0.001 * share
        while time.perf_counter() < until:
            pass
        await asyncio.sleep(0.001 * (1 - share))


async def measure(client: EngineClient, streams: int, args: argparse.Namespace) -> dict[str, Any]:
    busy = asyncio.create_task(keep_busy(args.loop_load)) if args.loop_load else None
    begun = time.perf_counter()
    results = await asyncio.gather(*(one_stream(client, i, args.prompt, args.tokens) for i in range(streams)))
    seconds = time.perf_counter() - begun
    if busy is not None:
        busy.cancel()
    gaps = sorted(gap for _, stream_gaps in results for gap in stream_gaps)
    return {
        "streams": streams,
        "out_tok_s": round(streams * args.tokens / seconds, 1),
        "ttft_p50_ms": round(1e3 * statistics.median(ttft for ttft, _ in results), 1),
        "itl_p50_ms": round(1e3 * statistics.median(gaps), 2),
        "itl_p99_ms": round(1e3 * gaps[int(0.99 * len(gaps))], 2),
    }


async def run(args: argparse.Namespace, counts: Sequence[int]) -> None:
    settings = {"model": args.model, "load_format": args.load_format, "max_num_seqs": max(counts)}
    config = EngineConfig.from_mapping({**settings, "num_threads": args.num_threads, "enable_prefix_caching": False})
    with tempfile.TemporaryDirectory() as folder:
        for name in ("child", "inline"):  # an inline engine keeps a GPU's memory to the end of this process
            client: EngineClient = ChildClient(config, Path(folder) / "engine.sock")
            if name == "inline":
                from engine.inline_client import InlineClient

                client = InlineClient(config)
            await client.start()
            await measure(client, 1, args)  # first calls pay for allocations
            for streams in counts:
                print({"client": name, **await measure(client, streams, args)}, flush=True)
            await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--streams", default="1,8,16")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--loop-load", type=float, default=0.3)
    parser.add_argument("--num-threads", type=int, default=0)
    args = parser.parse_args()
    asyncio.run(run(args, [int(part) for part in args.streams.split(",")]))


if __name__ == "__main__":
    main()

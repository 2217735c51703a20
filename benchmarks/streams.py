"""Tokens per second of 1, 8 and 16 concurrent streams through the whole gateway, in one run.

    set -a; . var/demo.env; set +a; python -m benchmarks.streams
Answers run to their full length (ignore_eos) and never come from the cache. Prints the ratio against one stream.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time

from openai import AsyncOpenAI


async def one_stream(client: AsyncOpenAI, model: str, number: int, tokens: int) -> tuple[int, float, list[float]]:
    """(completion tokens, TTFT in seconds, gaps between chunks in seconds)."""
    begun = last = time.perf_counter()
    ttft, gaps, made = 0.0, [], 0
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"Tell story number {number} about the sea."}],
        max_tokens=tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
        extra_headers={"cache-control": "no-cache, no-store"},
    )
    async for chunk in stream:
        now = time.perf_counter()
        if chunk.usage is not None:
            made = chunk.usage.completion_tokens
        elif chunk.choices and chunk.choices[0].delta.content:
            if ttft:
                gaps.append(now - last)
            else:
                ttft = now - begun
            last = now
    return made, ttft, gaps


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    client = AsyncOpenAI(max_retries=0)
    await one_stream(client, options.model, 0, 8)
    first = 0.0
    for streams in options.streams:
        rates, ttfts, gaps = [], [], []
        for number in range(options.rounds):
            begun = time.perf_counter()
            done = await asyncio.gather(
                *(one_stream(client, options.model, 100 * number + s, options.tokens) for s in range(streams))
            )
            rates.append(sum(made for made, _, _ in done) / (time.perf_counter() - begun))
            ttfts.extend(ttft for _, ttft, _ in done)
            gaps.extend(gap for _, _, stream_gaps in done for gap in stream_gaps)
        rate = statistics.median(rates)
        first = first or rate
        row = {
            "streams": streams,
            "tok_s": round(rate, 1),
            "against_one": round(rate / first, 2),
            "ttft_ms": round(statistics.median(ttfts) * 1000),
            "itl_ms": round(statistics.median(gaps) * 1000, 1),
        }
        print(json.dumps(row))


if __name__ == "__main__":
    asyncio.run(main())

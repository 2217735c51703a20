"""SmolLM2 on this host's CPU in bf16: tokens/s of 1, 8 and 16 streams beside transformers and llama.cpp, in one run.

    python -m benchmarks.cpu_peers --threads 2 --tokens 64

Each engine runs in a process of its own, one after the other, on the same prompts; the best of three runs counts.
llama.cpp is left out unless `llama-cpp-python` is installed, here or where `--llama-packages` says; it serves the
file's 4-bit weights, and its Python binding takes one prompt at a time, so its row is the same work done in turn.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

STREAMS = (1, 8, 16)
RUNS = 3
PROMPT_TOKENS = 32


def prompts(count: int) -> list[list[int]]:
    """Different beginnings, so that no prefix is shared."""
    return [[100 + (37 * i + j * j) % 40000 for j in range(PROMPT_TOKENS)] for i in range(count)]


def weir(folder: Path, threads: int, tokens: int) -> Callable[[int], None]:
    from engine import LLM, SamplingParams

    llm = LLM(
        str(folder),
        dtype="bfloat16",
        num_threads=threads,
        max_num_seqs=16,
        max_model_len=512,
        enable_prefix_caching=False,
    )
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)

    def run(count: int) -> None:
        llm.generate(prompts(count), sampling, use_tqdm=False)

    return run


def transformers(folder: Path, threads: int, tokens: int) -> Callable[[int], None]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)

    def run(count: int) -> None:
        ids = torch.tensor(prompts(count))
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                pad_token_id=0,
            )

    return run


def llama_cpp(folder: Path, threads: int, tokens: int) -> Callable[[int], None]:  # noqa: ARG001
    from llama_cpp import Llama

    from engine.model_source import find_packaged

    llama = Llama(str(find_packaged("smollm2")), n_threads=threads, n_threads_batch=threads, n_ctx=512, verbose=False)

    def run(count: int) -> None:
        for prompt in prompts(count):
            llama.reset()
            for _ in itertools.islice(llama.generate(prompt, temp=0.0), tokens):
                pass

    return run


ENGINES = {"weir": weir, "transformers": transformers, "llama_cpp": llama_cpp}


def measure(name: str, threads: int, tokens: int) -> None:
    """Prints one JSON line: tokens/s by streams."""
    from engine.model_source import resolve_model

    folder = resolve_model("smollm2", cache_dir=Path("var/models"))
    run = ENGINES[name](folder, threads, tokens)
    run(1)
    rates = {}
    for count in STREAMS:
        best = min(_seconds(run, count) for _ in range(RUNS))
        rates[count] = count * tokens / best
    print(json.dumps(rates))


def _seconds(run: Callable[[int], None], count: int) -> float:
    start = time.perf_counter()
    run(count)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--only", choices=ENGINES)
    parser.add_argument("--llama-packages", default="", help="site-packages of an environment with llama-cpp-python")
    options = parser.parse_args()
    if options.llama_packages:
        sys.path.append(options.llama_packages)  # last, so that what both have is ours
    if options.only:
        measure(options.only, options.threads, options.tokens)
        return
    print(f"{'tokens/s':14}" + "".join(f"{count:>10} streams" for count in STREAMS))
    for name in ENGINES:
        if name == "llama_cpp" and importlib.util.find_spec("llama_cpp") is None:
            print(f"{name:14} not installed")
            continue
        command = [sys.executable, "-m", "benchmarks.cpu_peers", "--only", name]
        command += ["--threads", str(options.threads), "--tokens", str(options.tokens)]
        command += ["--llama-packages", options.llama_packages]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        rates = json.loads(result.stdout.splitlines()[-1])
        print(f"{name:14}" + "".join(f"{rates[str(count)]:18.1f}" for count in STREAMS), flush=True)
    print(f"{options.threads} threads, load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

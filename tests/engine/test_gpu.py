"""What must hold on a GPU (`make gpu-test`): the CPU's tokens, determinism under load, no leak, no rebuilt graph."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import pytest
import torch

from engine import shared_prefix
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.cuda_runner import CudaRunner
from engine.quant.fp8 import Fp8Weight
from engine.startup import StartupReport, build_core_from_folder
from tests.engine.core_harness import SHAPE, VOCAB, WINDOWED, leaked_pages, make_core, prompt, request, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

WIDE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "torch_dtype": "bfloat16",
}


def gpu_core(folder: Path, shape: dict[str, Any] | None = None, weights: EngineCore | None = None, **settings: Any):
    """A core on the GPU over a dummy checkpoint; with the weights of another core where one is given."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**SHAPE, **(shape or {})}))
    config = EngineConfig.from_mapping({
        "model": str(folder), "load_format": "dummy", "device": "cuda", "num_gpu_blocks_override": 2048,
        "swap_space": 0, **settings,
    })  # fmt: skip
    core = build_core_from_folder(
        config, folder, device=torch.device("cuda"), report=StartupReport(), clock=perf_counter
    )
    if weights is not None:
        source = dict(weights.runner.model.named_parameters())
        for name, parameter in core.runner.model.named_parameters():
            parameter.data.copy_(source[name].data)
    return core


def _greedy(count: int, outputs: int = 24, **sampling: Any):
    return [
        request(
            f"r{i}",
            prompt(1 + (37 * i) % 150, seed=i),
            temperature=0.0,
            max_tokens=outputs,
            ignore_eos=True,
            **sampling,
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("shape", [None, WINDOWED], ids=["full", "windowed"])
@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
def test_fp32_greedy_tokens_equal_the_cpu_reference_path(tmp_path, shape, eager):
    # Given the same tiny fp32 weights on both
    cpu = make_core(tmp_path / "cpu", shape=shape)
    gpu = gpu_core(tmp_path / "gpu", shape, cpu, enforce_eager=eager, max_num_seqs=8, max_num_batched_tokens=64)
    # When 12 prompts run, then token for token the same
    assert run(gpu, _greedy(12)) == run(cpu, _greedy(12))


def test_decodes_with_a_shared_prefix_and_long_chunks_equal_the_cpu_reference_path(tmp_path, monkeypatch):
    # Given two system prompts shared by 40 requests, steps that read them once, and prompts over many keys in chunks
    monkeypatch.setattr(shared_prefix, "MIN_SAVED_TOKENS", 1)
    systems = [prompt(1290, seed=91), prompt(280, seed=92)]
    requests = [
        request(f"r{i}", systems[i % 2] + prompt(5 + i, seed=i), max_tokens=8 + i % 7, ignore_eos=True)
        for i in range(40)
    ]
    cpu = make_core(tmp_path / "cpu")
    gpu = gpu_core(tmp_path / "gpu", None, cpu, max_num_seqs=40, max_num_batched_tokens=192)
    # Then token for token the same
    assert run(gpu, requests) == run(cpu, requests)


def test_deterministic_mode_gives_the_same_answers_alone_and_among_63_others(tmp_path):
    core = gpu_core(tmp_path, WIDE, deterministic=True, max_num_seqs=64)
    mine = _greedy(50, outputs=16)
    others = [
        request(f"o{i}", prompt(5 + 11 * i % 90, seed=500 + i), temperature=1.0, max_tokens=30, seed=i, ignore_eos=True)
        for i in range(14)
    ]
    alone: dict[str, list[int]] = {}
    for item in mine:
        alone.update(run(core, [item]))
    among = run(core, [*others, *mine])
    assert {name: among[name] for name in alone} == alone


def test_seeded_draws_do_not_depend_on_neighbours_and_follow_their_parameters(tmp_path):
    core = gpu_core(tmp_path, SHAPE, max_num_seqs=16)
    seeded = request("s", prompt(9), temperature=0.8, top_k=20, top_p=0.9, max_tokens=20, seed=5, ignore_eos=True)
    alone = run(core, [seeded])["s"]
    assert run(core, [*_greedy(9), seeded])["s"] == alone
    narrow = request("k", prompt(9), temperature=5.0, top_k=1, max_tokens=20, seed=8, ignore_eos=True)
    greedy = request("g", prompt(9), temperature=0.0, max_tokens=20, ignore_eos=True)
    assert run(core, [narrow])["k"] == run(core, [greedy])["g"]


@pytest.mark.parametrize("rows", [1, 2, 64, 300])
def test_float8_products_stay_near_the_dequantised_ones(rows):
    weight = torch.randn(768, 512, device="cuda", dtype=torch.bfloat16)
    form = Fp8Weight(weight)
    x = torch.randn(rows, 512, device="cuda", dtype=torch.bfloat16)
    expected = x.double() @ form.dequantized().double().T
    off = (form(x).double() - expected).norm() / expected.norm()
    # Each value of a row is within 1/16 and the errors average out.
    assert float(off) < 0.04


def test_a_float8_model_answers_on_every_path(tmp_path):
    core = gpu_core(tmp_path, WIDE, quantization="fp8", max_num_seqs=16)
    assert all(len(tokens) == 24 for tokens in run(core, _greedy(20)).values())


def test_no_graph_is_captured_in_steady_state(tmp_path):
    core = gpu_core(tmp_path, WIDE, max_num_seqs=32)
    runner = core.runner
    assert isinstance(runner, CudaRunner)
    assert runner.graphs is not None
    captured = runner.graphs.num_captures
    assert captured == len(runner.graphs.sizes) + len(runner.graphs.shared_sizes)
    assert runner.mixed is not None
    graphs = [inputs.graph for inputs in runner.mixed._inputs]
    assert None not in graphs
    run(core, _greedy(40))
    assert runner.graphs.num_captures == captured
    assert [inputs.graph for inputs in runner.mixed._inputs] == graphs


def test_hours_of_random_requests_leak_no_page_and_no_memory(tmp_path):
    # Given requests of every kind, a fifth of them aborted somewhere on their way, over a pool that runs short
    core = gpu_core(tmp_path, WIDE, max_num_seqs=48, num_gpu_blocks_override=300, max_num_batched_tokens=512)
    random = Random(7)
    alive: list[str] = []
    settled = 0
    for turn in range(4000):
        if len(alive) < 80:
            name = f"q{turn}"
            item = request(
                name, prompt(random.randrange(1, 300), seed=random.randrange(40)), tenant=random.choice("abc"),
                temperature=random.choice([0.0, 1.0]), top_p=random.choice([1.0, 0.8]), ignore_eos=True,
                max_tokens=random.randrange(1, 60), frequency_penalty=random.choice([0.0, 0.0, 0.5]),
            )  # fmt: skip
            core.add(core.accept(item))
            alive.append(name)
        if random.random() < 0.1 and alive:
            core.abort(alive.pop(random.randrange(len(alive))))
        for output in core.step():
            assert output.error is None
            assert all(0 <= token < VOCAB for token in output.token_ids)
            if output.request_done and output.request_id in alive:
                alive.remove(output.request_id)
        if turn == 1000:
            settled = torch.cuda.memory_allocated()
    while core.has_work:
        core.step()
    core.scheduler.check()
    assert leaked_pages(core) == 0
    assert torch.cuda.memory_allocated() <= settled + (8 << 20)
    assert math.isfinite(float(core.runner.cache.pools[0].float().abs().max()))

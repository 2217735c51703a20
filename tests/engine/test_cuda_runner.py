"""The GPU's runner, uncaptured on a CPU: the same tokens as the plain runner, and nothing rebuilt in steady state."""

from __future__ import annotations

from pathlib import Path

import pytest

import engine.startup
from engine import shared_prefix
from engine.core import EngineCore
from engine.cuda_runner import CudaRunner
from engine.decode_graphs import graph_sizes, shared_sizes
from engine.mixed_graphs import MixedGraphs, mixed_sizes
from tests.engine.core_harness import WINDOWED, make_core, prompt, request, run


@pytest.fixture
def cuda_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def make(**settings) -> EngineCore:
        monkeypatch.setattr(engine.startup, "runner_class", lambda _device: CudaRunner)
        core = make_core(tmp_path / "cuda", **settings)
        monkeypatch.undo()
        return core

    return make


REQUESTS = [(3, 20), (40, 12), (17, 30), (1, 5), (65, 9)]


def _requests(**sampling):
    return [
        request(f"r{i}", prompt(length, seed=i), temperature=0.0, max_tokens=outputs, ignore_eos=True, **sampling)
        for i, (length, outputs) in enumerate(REQUESTS)
    ]


@pytest.mark.parametrize("shape", [None, WINDOWED], ids=["full", "windowed"])
@pytest.mark.parametrize("overlap", ["off", "on"])
def test_greedy_tokens_equal_the_plain_runners(tmp_path, cuda_core, shape, overlap):
    plain = run(make_core(tmp_path / "plain", shape=shape), _requests())
    fast = run(cuda_core(shape=shape, async_scheduling=overlap, max_num_seqs=4), _requests())
    assert fast == plain


@pytest.mark.parametrize("shape", [None, WINDOWED], ids=["full", "windowed"])
def test_padded_mixed_steps_give_the_plain_runners_tokens(tmp_path, cuda_core, shape):
    # Given a runner whose steps with prompts go through fixed buffers, as captured ones do
    core = cuda_core(shape=shape, max_num_seqs=4, max_num_batched_tokens=48)
    runner = core.runner
    runner.mixed = MixedGraphs(
        runner.model, runner.cache.view, runner.state, max_num_seqs=4, max_num_batched_tokens=48, max_model_len=2048
    )
    # Then greedy tokens are the plain runner's, whatever stood in the buffers before
    assert run(core, _requests()) == run(make_core(tmp_path / "plain", shape=shape), _requests())


def test_decodes_with_a_shared_prefix_give_the_plain_runners_tokens(tmp_path, cuda_core, monkeypatch):
    # Given ten requests of two system prompts, and steps that put those of one together
    core = cuda_core(max_num_seqs=16)
    monkeypatch.setattr(shared_prefix, "MIN_SAVED_TOKENS", 1)
    systems = [prompt(300, seed=91), prompt(280, seed=92)]
    requests = [
        request(f"r{i}", systems[i % 2] + prompt(5 + i, seed=i), max_tokens=30 + i, ignore_eos=True) for i in range(10)
    ]
    found = []
    find = core.runner.prefix_groups.find
    monkeypatch.setattr(core.runner.prefix_groups, "find", lambda plan: found.append(find(plan)) or found[-1])
    # Then every request gets its own tokens, and some steps did share
    assert run(core, requests) == run(make_core(tmp_path / "plain"), requests)
    assert any(groups is not None and len(groups.lens) == 2 for groups in found)


def test_penalties_bias_and_minimum_length_take_the_host_path(tmp_path, cuda_core):
    options = {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "logit_bias": {7: 3.0}, "min_tokens": 4}
    plain = run(make_core(tmp_path / "plain"), _requests(**options))
    assert run(cuda_core(), _requests(**options)) == plain


def test_a_seeded_request_draws_the_same_alone_and_among_others(cuda_core):
    seeded = request("s", prompt(9), temperature=1.0, top_p=0.9, max_tokens=20, seed=5, ignore_eos=True)
    alone = run(cuda_core(), [seeded])
    among = run(cuda_core(), [*_requests(), seeded])
    assert among["s"] == alone["s"]
    other = request("s", prompt(9), temperature=1.0, top_p=0.9, max_tokens=20, seed=6, ignore_eos=True)
    assert run(cuda_core(), [other])["s"] != alone["s"]


def test_log_probabilities_do_not_change_what_is_drawn(cuda_core):
    def seeded(**extra):
        return request("s", prompt(9), temperature=1.0, max_tokens=12, seed=5, ignore_eos=True, **extra)

    assert run(cuda_core(), [seeded(logprobs=2)]) == run(cuda_core(), [seeded()])


@pytest.mark.parametrize("most", [1, 5, 64, 256, 512])
def test_graph_sizes_end_at_the_most_sequences_and_waste_little(most):
    sizes = graph_sizes(most)
    assert sizes[-1] == most
    assert sizes == sorted(set(sizes))
    for count in range(16, most + 1):
        size = next(size for size in sizes if size >= count)
        assert size - count <= max(7, count // 4)


@pytest.mark.parametrize("most", [1, 20, 64, 256, 512])
def test_shared_sizes_end_at_the_most_sequences(most):
    sizes = shared_sizes(most)
    assert sizes[-1] == most
    assert sizes == sorted(set(sizes))


def test_mixed_sizes_hold_a_whole_step_up_to_their_limit():
    assert mixed_sizes(16) == [64]
    assert mixed_sizes(200) == [64, 128, 192, 256]
    assert mixed_sizes(8192)[-1] == 512

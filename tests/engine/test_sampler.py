"""What every sampling parameter does to the choice, row by row, by hand-made logits."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from engine.random_uniform import uniform
from engine.request_state import RequestState
from engine.sampler import CANDIDATES, FAILED, Sampled, Sampler
from engine.sequence import RequestGroup, Sequence
from engine.types import EngineRequest, SamplingParams

VOCAB = 1000
EOS = 999


class Bench:
    """Rows of a batch, each with its own logits, parameters, prompt and outputs so far."""

    def __init__(self) -> None:
        self.state = RequestState(
            max_num_seqs=512,
            max_model_len=64,
            block_size=16,
            num_groups=1,
            logits_width=VOCAB,
            device=torch.device("cpu"),
        )
        self.sampler = Sampler(self.state, (EOS,))
        self.sequences: list[Sequence] = []
        self.logits: list[torch.Tensor] = []

    def row(
        self,
        logits: torch.Tensor | dict[int, float],
        *,
        prompt: tuple[int, ...] = (1,),
        outputs: tuple[int, ...] = (),
        index: int = 0,
        **sampling: Any,
    ) -> int:
        if isinstance(logits, dict):
            values = torch.full((VOCAB,), -20.0)
            for token_id, value in logits.items():
                values[token_id] = value
            logits = values
        params = SamplingParams(**{"temperature": 0.0, **sampling})
        request = EngineRequest(request_id="r", prompt_token_ids=list(prompt), sampling=params, cache_salt=b"s")
        group = RequestGroup(request, 0, 50, params.seed or 0, 1)
        ids = [*prompt, *outputs]
        sequence = Sequence(group, index, ids, len(prompt), len(ids), row=len(self.sequences))
        sequence.block_tables = [[]]
        self.state.admit(sequence)
        sequence.num_tokens += 1  # the token being sampled
        self.sequences.append(sequence)
        self.logits.append(logits)
        return len(self.sequences) - 1

    def sample(self, masks: dict[int, torch.Tensor] | None = None) -> Sampled:
        return self.sampler.sample(torch.stack(self.logits), self.sequences, masks)

    def tokens(self, masks: dict[int, torch.Tensor] | None = None) -> list[int]:
        return self.sample(masks).token_ids.tolist()


def _draws(count: int, logits: dict[int, float], **sampling: Any) -> Counter[int]:
    bench = Bench()
    for seed in range(count):
        bench.row(logits, **{"temperature": 1.0, "seed": seed, **sampling})
    return Counter(bench.tokens())


def test_temperature_zero_takes_the_best() -> None:
    bench = Bench()
    bench.row({5: 3.0, 7: 2.0})
    bench.row({5: 2.0, 7: 3.0})
    assert bench.tokens() == [5, 7]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax_at_the_temperature(temperature: float) -> None:
    logits = {5: 2.0, 7: 1.0, 9: 0.0}
    found = _draws(500, logits, temperature=temperature, top_k=3)
    weights = {token: math.exp(value / temperature) for token, value in logits.items()}
    for token, weight in weights.items():
        expected = weight / sum(weights.values())
        assert found[token] / 500 == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / 500))
    assert set(found) == set(logits)


def test_filtered_and_unfiltered_draws_agree_with_the_whole_softmax() -> None:
    torch.manual_seed(0)
    logits = torch.randn(VOCAB) * 3
    bench = Bench()
    for seed in range(400):
        bench.row(logits, temperature=1.0, seed=seed)
    counts = torch.bincount(bench.sample().token_ids, minlength=VOCAB) / 400
    probs = torch.softmax(logits, 0)
    top = probs.topk(5).indices
    torch.testing.assert_close(counts[top], probs[top], atol=0.09, rtol=0)


def test_top_k_keeps_the_k_best() -> None:
    found = _draws(300, {5: 2.0, 7: 1.9, 9: 1.8, 11: 1.7}, top_k=2)
    assert set(found) == {5, 7}
    assert set(_draws(50, {5: 2.0, 7: 1.9}, top_k=1)) == {5}


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    # 0.64, 0.24, 0.09, 0.03 of the mass
    logits = {5: 3.0, 7: 2.0, 9: 1.0, 11: 0.0}
    assert set(_draws(300, logits, top_p=0.6)) == {5}
    assert set(_draws(300, logits, top_p=0.7)) == {5, 7}
    assert set(_draws(300, logits, top_p=0.9)) == {5, 7, 9}


def test_top_p_acts_on_what_top_k_left() -> None:
    # Of two left, the first has 0.73
    assert set(_draws(200, {5: 3.0, 7: 2.0, 9: 1.9, 11: 1.8}, top_k=2, top_p=0.72)) == {5}


def test_min_p_keeps_what_is_near_the_best() -> None:
    # Ratios to the best: 0.37, 0.05
    assert set(_draws(300, {5: 3.0, 7: 2.0, 9: 0.0}, min_p=0.3)) == {5, 7}
    assert set(_draws(300, {5: 3.0, 7: 2.0, 9: 0.0}, min_p=0.01)) == {5, 7, 9}


def test_a_flat_distribution_wider_than_the_candidates_is_drawn_from_whole() -> None:
    # Given a mass spread evenly over the vocabulary
    bench = Bench()
    for seed in range(400):
        bench.row(torch.zeros(VOCAB), temperature=1.0, seed=seed, top_p=0.9)
    tokens = set(bench.tokens())
    # Then many more than the first candidates are drawn, and a tenth never
    assert len(tokens) > 250
    assert max(len({t for t in tokens if t >= CANDIDATES}), 0) > 50
    bench = Bench()
    for seed in range(400):
        bench.row(torch.arange(VOCAB).float() * -1e-3, temperature=1.0, seed=seed, top_p=0.5)
    assert max(bench.tokens()) < 450  # the first half of the mass lies in the first 380


def test_repetition_penalty_counts_prompt_and_output_once() -> None:
    bench = Bench()
    bench.row({5: 4.0, 7: 3.0}, prompt=(5,), repetition_penalty=1.5)  # 4 / 1.5 < 3
    bench.row({5: 4.0, 7: 3.0}, outputs=(5, 5, 5), repetition_penalty=1.2)  # 4 / 1.2 > 3, once
    bench.row({5: -1.0, 7: -1.4}, prompt=(5,), repetition_penalty=1.5)  # negative logits are multiplied
    assert bench.tokens() == [7, 5, 7]


def test_presence_is_once_and_frequency_is_per_occurrence_of_outputs_only() -> None:
    bench = Bench()
    bench.row({5: 4.0, 7: 3.0}, outputs=(5, 5, 5), presence_penalty=0.9)
    bench.row({5: 4.0, 7: 3.0}, outputs=(5,), presence_penalty=1.1)
    bench.row({5: 4.0, 7: 3.0}, outputs=(5,), frequency_penalty=0.6)
    bench.row({5: 4.0, 7: 3.0}, outputs=(5, 5), frequency_penalty=0.6)
    bench.row({5: 4.0, 7: 3.0}, prompt=(5, 5), frequency_penalty=2.0, presence_penalty=2.0)
    assert bench.tokens() == [5, 7, 5, 7, 5]


def test_the_count_goes_on_from_step_to_step() -> None:
    bench = Bench()
    bench.row({5: 4.0, 7: 3.0}, frequency_penalty=0.7)
    assert [bench.tokens()[0] for _ in range(4)] == [5, 5, 7, 5]


def test_bias_and_grammar_mask_move_the_choice() -> None:
    bench = Bench()
    bench.row({5: 4.0, 7: 3.0}, logit_bias={7: 1.5})
    bench.row({5: 4.0, 7: 3.0})
    mask = torch.zeros(VOCAB, dtype=torch.bool)
    mask[9] = True
    assert bench.tokens({1: mask}) == [7, 9]


def test_min_tokens_holds_eos_and_stop_ids_off() -> None:
    bench = Bench()
    bench.row({EOS: 9.0, 8: 8.0, 5: 1.0}, min_tokens=2, stop_token_ids=(8,))
    bench.row({EOS: 9.0, 8: 8.0, 5: 1.0}, min_tokens=2, stop_token_ids=(8,), outputs=(1,))
    bench.row({EOS: 9.0, 8: 8.0, 5: 1.0}, min_tokens=2, stop_token_ids=(8,), outputs=(1, 1))
    assert bench.tokens() == [5, 5, EOS]


def test_nan_overflow_and_nothing_allowed_fail_their_row_alone() -> None:
    bench = Bench()
    nan = torch.zeros(VOCAB)
    nan[3] = float("nan")
    overflow = torch.zeros(VOCAB)
    overflow[3] = float("inf")
    bench.row(nan)
    bench.row({5: 1.0})
    bench.row(overflow, temperature=1.0, seed=1)
    bench.row({5: 1.0})
    bench.row(nan, temperature=1.0, top_p=0.5, seed=1)
    nothing = torch.zeros(VOCAB, dtype=torch.bool)
    assert bench.tokens({3: nothing}) == [FAILED, 5, FAILED, FAILED, FAILED]


def test_logprobs_are_raw_whatever_was_done_to_the_logits() -> None:
    torch.manual_seed(1)
    logits = torch.randn(VOCAB)
    bench = Bench()
    bench.row(logits, logprobs=3, temperature=0.3, logit_bias={4: 100.0}, seed=1)
    bench.row(logits)
    bench.row(logits, logprobs=0)
    sampled = bench.sample()
    expected = torch.log_softmax(logits.double(), 0)
    best = expected.topk(3)
    assert set(sampled.logprobs) == {0, 2}
    item = sampled.logprobs[0]
    assert item.token_id == 4
    assert item.logprob == pytest.approx(float(expected[4]), abs=1e-5)
    assert item.rank == int((expected > expected[4]).sum()) + 1
    assert item.top_ids == best.indices.tolist()
    assert item.top_logprobs == pytest.approx(best.values.tolist(), abs=1e-5)
    assert sampled.logprobs[2].top_ids == []
    assert sampled.logprobs[2].rank == 1


@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.02}])
def test_a_seeded_row_does_not_see_its_neighbours(options: dict[str, Any]) -> None:
    torch.manual_seed(2)
    logits = torch.randn(VOCAB) * 2

    def choose(neighbours: int) -> int:
        bench = Bench()
        for i in range(neighbours):
            bench.row(torch.randn(VOCAB), temperature=1.0, seed=i, top_k=i % 3, top_p=1 - 0.1 * (i % 4))
        row = bench.row(logits, temperature=1.0, seed=77, outputs=(4, 4), **options)
        return bench.tokens()[row]

    assert len({choose(n) for n in (0, 1, 7, 40)}) == 1


def test_siblings_and_positions_draw_differently() -> None:
    numbers = {uniform(seed, index, position) for seed in range(20) for index in range(5) for position in range(20)}
    assert len(numbers) == 2000
    assert 0 <= min(numbers) < 0.01
    assert 0.99 < max(numbers) < 1
    assert sum(numbers) / 2000 == pytest.approx(0.5, abs=0.03)

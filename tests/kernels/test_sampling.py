"""Sampling against a sort, its noise against its distribution."""

from __future__ import annotations

import math

import pytest
import torch

import kernels.sampling as module
from kernels.sampling import NAN_TOKEN, gumbel_noise_ref, sample, sample_ref


def _sample(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, position=0, fn=sample):
    rows, device = logits.shape[0], logits.device

    def column(value, dtype):
        values = value if isinstance(value, list) else [value] * rows
        return torch.tensor(values, dtype=dtype, device=device)

    return fn(
        logits,
        column(temperature, torch.float32),
        column(top_k, torch.int32),
        column(top_p, torch.float32),
        column(min_p, torch.float32),
        column(seed, torch.int64),
        column(position, torch.int64),
    )


CASES = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_k": 1},
    {"temperature": 1.3, "top_k": 7},
    {"top_p": 0.4},
    {"top_p": 1e-6},
    {"min_p": 0.3},
    {"temperature": 0.9, "top_k": 50, "top_p": 0.8, "min_p": 0.02},
    {"top_k": 10_000},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_draws_the_same_token_as_the_sorted_reference(device, case):
    logits = 3 * torch.randn(6, 300, device=device)
    options = {**case, "seed": [1, 2, 3, -4, 2**40, 6], "position": [0, 1, 2, 3, 100_000, 5]}
    assert torch.equal(_sample(logits, **options), _sample(logits, fn=sample_ref, **options))


@pytest.mark.parametrize("spread", [0.01, 3.0, 40.0])
@pytest.mark.parametrize("case", CASES[3:], ids=str)
def test_a_search_with_little_room_ends_at_the_same_token(device, case, spread, monkeypatch):
    # Given room for 8 candidates, so that passes over the whole row must narrow the range first
    monkeypatch.setattr(module, "_ROOM", 8)
    logits = spread * torch.randn(3, 300, device=device)
    logits[1, :40] = float("-inf")
    logits[2, :60] = logits[2].max()  # more ties than there is room for
    options = {**case, "seed": [1, 2, 3], "position": [0, 1, 2]}
    assert torch.equal(_sample(logits, **options), _sample(logits, fn=sample_ref, **options))


@pytest.mark.parametrize("case", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}], ids=str)
def test_filters_leave_no_other_token(device, case):
    # Given one row of which 3 tokens hold nearly all the mass, drawn at many positions
    logits = torch.full((24, 40), -9.0, device=device)
    logits[:, [4, 9, 30]] = torch.tensor([5.0, 4.9, 4.8], device=device)
    drawn = set(_sample(logits, position=list(range(24)), temperature=3.0, **case).tolist())
    # Then the draws vary, and stay inside
    assert drawn <= {4, 9, 30}
    assert len(drawn) > 1


def test_ties_at_the_cut_are_kept_and_greedy_takes_the_lowest(device):
    logits = torch.zeros(20, 16, device=device)
    drawn = _sample(logits, top_k=1, position=list(range(20)))
    assert len(set(drawn.tolist())) > 3
    assert _sample(logits, temperature=0.0).tolist() == [0] * 20


def test_a_nan_is_reported_and_its_neighbours_sample_on(device):
    logits = torch.randn(3, 5000, device=device)
    logits[1, 4999] = float("nan")
    tokens = _sample(logits, temperature=[0.0, 0.0, 1.0]).tolist()
    assert tokens[1] == NAN_TOKEN
    assert tokens[0] == int(logits[0].argmax())
    assert tokens[2] >= 0


def test_masked_tokens_are_never_drawn(device):
    logits = torch.full((4, 64), float("-inf"), device=device)
    logits[:, 50] = -3.0
    assert _sample(logits, top_p=0.9, position=[1, 2, 3, 4]).tolist() == [50] * 4


def test_a_row_draws_the_same_alone_and_among_others(device):
    logits = torch.randn(5, 100, device=device)
    together = _sample(logits, seed=[9, 8, 7, 6, 5], position=[3, 3, 3, 3, 3])
    assert _sample(logits[2:3], seed=7, position=3).tolist() == together[2:3].tolist()


def test_draws_follow_the_distribution():
    # Given 20,000 positions of one seed
    probs = torch.tensor([0.5, 0.25, 0.125, 0.1, 0.025])
    noise = gumbel_noise_ref(torch.full((20_000,), 77), torch.arange(20_000), 5)
    counts = torch.bincount((probs.log() + noise).argmax(-1), minlength=5).double()
    # Then chi-square stays under its 99.99th percentile at 4 degrees of freedom
    expected = probs.double() * 20_000
    assert float(((counts - expected) ** 2 / expected).sum()) < 23.5


def test_noise_has_a_gumbels_mean_and_variance_and_no_repeats_between_seeds():
    noise = gumbel_noise_ref(torch.tensor([1, 2]), torch.tensor([0, 0]), 100_000).double()
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.01)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, rel=0.03)
    assert abs(float(torch.corrcoef(noise)[0, 1])) < 0.02
    assert torch.isfinite(noise).all()


def test_columns_of_another_length_are_refused():
    with pytest.raises(ValueError, match="temperatures"):
        sample(torch.zeros(2, 4), *(torch.zeros(1) for _ in range(6)))

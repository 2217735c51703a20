"""Repetition, presence and frequency penalties."""

from __future__ import annotations

import pytest
import torch

from kernels.penalties import apply_penalties, apply_penalties_ref


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matches_reference_row_by_row(device, dtype):
    # Given three rows of a table of five, one of them without penalties
    logits = torch.randn(3, 3000, device=device).to(dtype)
    counts = torch.randint(0, 3, (5, 3000), dtype=torch.int32, device=device)
    prompt = torch.rand(5, 3000, device=device) < 0.3
    rows = torch.tensor([4, 0, 2], device=device)
    penalties = [torch.tensor(values, device=device) for values in ([1.3, 1.0, 0.8], [0.5, 0.0, 0.0], [0.2, 0.0, -0.7])]
    expected, actual = logits.clone(), logits.clone()
    apply_penalties_ref(expected, rows, counts, prompt, *penalties)
    # When applied
    apply_penalties(actual, rows, counts, prompt, *penalties)
    # Then rows agree, and the neutral one is untouched
    tolerance = {"rtol": 1.6e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(actual, expected, **tolerance)
    assert torch.equal(actual[1], logits[1])


def test_definitions_by_hand():
    logits = torch.tensor([[2.0, -2.0, 1.0, 1.0]])
    counts = torch.tensor([[1, 3, 0, 0]], dtype=torch.int32)
    prompt = torch.tensor([[False, False, True, False]])
    one = torch.ones(1)
    apply_penalties(logits, torch.zeros(1).int(), counts, prompt, 2 * one, 0.5 * one, 0.25 * one)
    torch.testing.assert_close(logits, torch.tensor([[1.0 - 0.75, -4.0 - 1.25, 0.5, 1.0]]))


def test_tables_of_another_vocabulary_are_refused():
    tables = torch.zeros(1, 3, dtype=torch.int32), torch.zeros(1, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="do not fit"):
        apply_penalties(torch.zeros(1, 4), torch.zeros(1).int(), *tables, *(torch.ones(1) for _ in range(3)))

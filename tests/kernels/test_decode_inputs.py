"""A decode step's inputs gathered by row, and sampled ids put back."""

from __future__ import annotations

import pytest
import torch

from kernels.decode_inputs import DecodeInputs, append_tokens, gather_decode_inputs, gather_decode_inputs_ref


def _poisoned(size: int, columns: int, groups: int, device: str) -> DecodeInputs:
    def full(shape, dtype):
        return torch.full(shape, -77, dtype=dtype, device=device)

    return DecodeInputs(
        full((size,), torch.int64),
        full((size,), torch.int64),
        full((size,), torch.int32),
        tuple(full((size,), torch.int64) for _ in range(groups)),
        tuple(full((size, columns), torch.int32) for _ in range(groups)),
    )


def test_rows_are_gathered_and_padding_is_harmless(device):
    # Given tables of five rows in two groups, three sequences at scattered rows and a padding row
    block_size, columns = 4, 300
    tokens = torch.randint(0, 1000, (5, columns * block_size + 1), dtype=torch.int32, device=device)
    tables = tuple(torch.randint(1, 99, (5, columns), dtype=torch.int32, device=device) for _ in range(2))
    rows = torch.tensor([3, 0, 4, -1], device=device)
    starts = torch.tensor([0, 1199, 7, 55], device=device)
    expected, actual = _poisoned(4, columns, 2, device), _poisoned(4, columns, 2, device)
    gather_decode_inputs_ref(rows, starts, tokens, tables, block_size, expected)
    # When gathered
    gather_decode_inputs(rows, starts, tokens, tables, block_size, actual)
    # Then all agree, tables as far as the context reaches
    for got, want in zip(actual[:3] + actual.slots, expected[:3] + expected.slots, strict=True):
        assert torch.equal(got, want)
    for got, want in zip(actual.block_tables, expected.block_tables, strict=True):
        for i, start in enumerate([0, 1199, 7]):
            used = start // block_size + 1
            assert torch.equal(got[i, :used], want[i, :used])
    assert actual.slots[1][3] == -1
    assert actual.seq_lens[3] == 0


def test_sampled_ids_become_the_next_inputs_and_failed_ones_zero(device):
    tokens = torch.full((3, 8), 5, dtype=torch.int32, device=device)
    ids, rows = torch.tensor([42, -1, 9], device=device), torch.tensor([2, 0, -1], device=device)
    append_tokens(ids, rows, torch.tensor([3, 6, 1], device=device), tokens)
    expected = torch.full((3, 8), 5, dtype=torch.int32, device=device)
    expected[2, 4], expected[0, 7] = 42, 0
    assert torch.equal(tokens, expected)


def test_groups_that_do_not_match_are_refused():
    out = _poisoned(1, 2, 1, "cpu")
    with pytest.raises(ValueError, match="2 groups"):
        gather_decode_inputs(
            torch.zeros(1).long(), torch.zeros(1).long(), torch.zeros(1, 2).int(), (out[0],) * 2, 4, out
        )

"""Embedding rows gathered by id."""

from __future__ import annotations

import pytest
import torch

from kernels.embedding import embedding


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
def test_rows_are_exact(device, dtype, ids_dtype):
    weight = torch.randn(37, 130, device=device).to(dtype)
    ids = torch.tensor([0, 36, 5, 5], dtype=ids_dtype, device=device)
    assert torch.equal(embedding(ids, weight), weight[ids.long()])


def test_no_ids_give_no_rows(device):
    assert embedding(torch.empty(0, dtype=torch.int32, device=device), torch.ones(4, 8, device=device)).shape == (0, 8)


def test_ids_of_two_dimensions_are_refused():
    with pytest.raises(ValueError, match="num_tokens"):
        embedding(torch.zeros(1, 1, dtype=torch.int64), torch.ones(4, 8))

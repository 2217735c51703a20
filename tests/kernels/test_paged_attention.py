"""Reference and kernels against a plain per-token computation in float64 on fresh random inputs."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.kv_write import kv_write
from kernels.paged_attention import paged_attention

BLOCK = 4


def _expected(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, soft_cap: float, sinks: torch.Tensor | None
) -> torch.Tensor:
    """q [L, H, D] are the last L positions of k, v [S, KVH, D]; float64, one token and one head at a time."""
    length, heads, dim = q.shape
    total = k.shape[0]
    out = torch.empty(length, heads, dim, dtype=torch.float64)
    for i in range(length):
        position = total - length + i
        low = max(0, position - window + 1) if window else 0
        for head in range(heads):
            kv = head // (heads // k.shape[1])
            scores = (k[low : position + 1, kv].double() @ q[i, head].double()) / math.sqrt(dim)
            if soft_cap:
                scores = torch.tanh(scores / soft_cap) * soft_cap
            if sinks is not None:
                scores = torch.cat((scores, sinks[head].double()[None]))
            probs = torch.softmax(scores, 0)[: position + 1 - low]
            out[i, head] = probs @ v[low : position + 1, kv].double()
    return out


@pytest.mark.parametrize("window", [0, 3, 9])
@pytest.mark.parametrize(("soft_cap", "with_sinks"), [(0.0, False), (5.0, False), (0.0, True)])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (3, 1)])
def test_mixed_batch_over_scattered_pages_equals_float64(
    window: int, soft_cap: float, with_sinks: bool, heads: int, kv_heads: int
) -> None:
    # Given three decodes, a chunk over a cached prefix and a whole prompt, their pages scattered over the pool
    torch.manual_seed(heads * 100 + window)
    dim = 8
    shapes = [(1, 1), (1, 17), (1, 30), (5, 22), (7, 7)]  # (query tokens, context)
    pool = torch.zeros(64, 2, 2, kv_heads, BLOCK, dim)
    cache = pool[:, 1]
    free = torch.randperm(63).add(1).tolist()
    sinks = torch.randn(heads) if with_sinks else None
    queries, tables, expected = [], torch.zeros(len(shapes), 16, dtype=torch.int32), []
    for row, (length, total) in enumerate(shapes):
        q, k, v = torch.randn(length, heads, dim), torch.randn(total, kv_heads, dim), torch.randn(total, kv_heads, dim)
        pages = [free.pop() for _ in range(-(-total // BLOCK))]
        tables[row, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
        slots = torch.tensor([pages[i // BLOCK] * BLOCK + i % BLOCK for i in range(total)])
        kv_write(k, v, cache, slots)
        queries.append(q)
        expected.append(_expected(q, k, v, window, soft_cap, sinks))
    lengths = torch.tensor([0] + [s[0] for s in shapes]).cumsum(0).int()
    # When attended in one call
    out = paged_attention(
        torch.cat(queries),
        cache,
        tables,
        lengths,
        torch.tensor([s[1] for s in shapes], dtype=torch.int32),
        num_decodes=3,
        max_query_len=7,
        max_seq_len=30,
        scale=1 / math.sqrt(dim),
        window=window,
        soft_cap=soft_cap,
        sinks=sinks,
    )
    # Then every row equals the float64 computation
    torch.testing.assert_close(out.double(), torch.cat(expected), atol=2e-6, rtol=1e-5)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    torch.manual_seed(0)
    cache = torch.randn(40, 2, 2, BLOCK, 8)
    tables = torch.randperm(36).view(3, 12).add(1).int()
    q, lens = torch.randn(3, 4, 8), torch.tensor([9, 41, 20], dtype=torch.int32)
    options = {"max_query_len": 1, "scale": 0.3}
    together = paged_attention(q, cache, tables, torch.arange(4).int(), lens, num_decodes=3, max_seq_len=41, **options)
    alone = paged_attention(
        q[:1], cache, tables[:1], torch.arange(2).int(), lens[:1], num_decodes=1, max_seq_len=9, **options
    )
    torch.testing.assert_close(together[:1], alone, atol=1e-6, rtol=0)


def test_padding_slots_are_not_written_and_fp8_rounds_within_its_step() -> None:
    # Given a cache in fp8 and a token whose slot is -1
    k, v = torch.randn(3, 2, 8) * 4, torch.randn(3, 2, 8) * 4
    k[0, 0, 0] = 1e6  # beyond fp8's range: clamps, never NaN
    pool = torch.zeros(5, 2, 2, BLOCK, 8, dtype=torch.float8_e4m3fn)
    # When written
    kv_write(k, v, pool, torch.tensor([4, -1, 11]))
    # Then the padding token is nowhere, the others within e4m3's relative step of 2**-3 / 2
    stored = pool.float()
    assert int((stored.abs().sum((1, 2, 4)) > 0).sum()) == 2
    torch.testing.assert_close(stored[1, 1, :, 0], v[0], rtol=0.0626, atol=0.002)
    torch.testing.assert_close(stored[2, 0, :, 3], k[2], rtol=0.0626, atol=0.002)
    assert stored[1, 0, 0, 0, 0] == 448.0


def test_shapes_that_do_not_fit_are_refused_by_name() -> None:
    cache = torch.zeros(5, 2, 2, BLOCK, 8)
    with pytest.raises(ValueError, match=r"kv_write: k \(3, 2, 7\)"):
        kv_write(torch.zeros(3, 2, 7), torch.zeros(3, 2, 7), cache, torch.arange(3))
    with pytest.raises(ValueError, match="does not fit a cache"):
        paged_attention(
            torch.zeros(1, 3, 8),
            cache,
            torch.zeros(1, 4, dtype=torch.int32),
            torch.tensor([0, 1]),
            torch.tensor([1]),
            num_decodes=1,
            max_query_len=1,
            max_seq_len=1,
            scale=1.0,
        )


@pytest.mark.parametrize("window", [0, 70])
@pytest.mark.parametrize(("soft_cap", "with_sinks"), [(0.0, False), (5.0, True)])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 16), (3, 1, 24)])
def test_kernels_equal_float64_over_several_tiles_and_splits(
    device: str, window: int, soft_cap: float, with_sinks: bool, heads: int, kv_heads: int, dim: int
) -> None:
    # Given a padding row, decodes over one and several tiles, a chunk over a prefix; freed slots hold NaN
    shapes = [(1, 0), (1, 1), (1, 200), (9, 140)]
    page = 16
    pool = torch.full((32, 2, 2, kv_heads, page, dim), float("nan"), device=device)
    pool[0] = 0.0
    free = torch.randperm(31).add(1).tolist()
    sinks = torch.randn(heads, device=device) if with_sinks else None
    queries, tables, expected = [], torch.zeros(len(shapes), 13, dtype=torch.int32, device=device), []
    for row, (length, total) in enumerate(shapes):
        q = torch.randn(length, heads, dim, device=device)
        k, v = (torch.randn(total, kv_heads, dim, device=device) for _ in range(2))
        pages = [free.pop() for _ in range(-(-total // page))]
        tables[row, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
        slots = torch.tensor([pages[i // page] * page + i % page for i in range(total)], dtype=torch.int64)
        kv_write(k, v, pool[:, 1], slots.to(device))
        queries.append(q)
        host_sinks = None if sinks is None else sinks.cpu()
        if total:
            expected.append(_expected(q.cpu(), k.cpu(), v.cpu(), window, soft_cap, host_sinks))
        else:
            expected.append(torch.zeros(length, heads, dim, dtype=torch.float64))
    lengths = torch.tensor([0] + [s[0] for s in shapes]).cumsum(0).int().to(device)
    # When attended
    out = paged_attention(
        torch.cat(queries),
        pool[:, 1],
        tables,
        lengths,
        torch.tensor([s[1] for s in shapes], dtype=torch.int32, device=device),
        num_decodes=3,
        max_query_len=9,
        max_seq_len=200,
        scale=1 / math.sqrt(dim),
        window=window,
        soft_cap=soft_cap,
        sinks=sinks,
    )
    # Then every row is right, and the padding row is finite
    torch.testing.assert_close(out.double().cpu(), torch.cat(expected), atol=5e-6, rtol=2e-5)

"""Reference and kernels against a plain per-token computation in float64 on fresh random inputs."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.kv_write import kv_write
from kernels.paged_attention import SharedPrefixes, paged_attention

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


def _filled_cache(
    device: str, lengths: list[int], shared_pages: int, members: int, *, heads: int, kv_heads: int, dim: int
) -> tuple[torch.Tensor, torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
    """(pool, block tables, keys and values) of sequences of which the first `members` share their first pages; slots
    that nobody owns hold NaN."""
    page = 16
    pool = torch.full((96, 2, 2, kv_heads, page, dim), float("nan"), device=device)
    pool[0] = 0.0
    free = torch.randperm(95).add(1).tolist()
    tables = torch.zeros(len(lengths), 24, dtype=torch.int32, device=device)
    common = [free.pop() for _ in range(shared_pages)]
    common_kv = [torch.randn(shared_pages * page, kv_heads, dim, device=device) for _ in range(2)]
    contents = []
    for row, total in enumerate(lengths):
        k, v = (torch.randn(total, kv_heads, dim, device=device) for _ in range(2))
        pages = []
        if row < members:
            pages = list(common)
            k[: len(common_kv[0])], v[: len(common_kv[1])] = common_kv
        pages += [free.pop() for _ in range(-(-total // page) - len(pages))]
        tables[row, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
        slots = torch.tensor([pages[i // page] * page + i % page for i in range(total)], dtype=torch.int64)
        kv_write(k, v, pool[:, 1], slots.to(device))
        contents.append((k.cpu(), v.cpu()))
    return pool, tables, contents


@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 16), (3, 1, 24)])
def test_decodes_with_a_shared_prefix_equal_float64(
    device: str, with_sinks: bool, heads: int, kv_heads: int, dim: int
) -> None:
    # Given a group of five over 128 shared keys, an empty group, two decodes of their own and a row of padding
    lengths = [129, 170, 144, 200, 131, 90, 20, 0]
    pool, tables, contents = _filled_cache(device, lengths, 8, 5, heads=heads, kv_heads=kv_heads, dim=dim)
    q = torch.randn(8, heads, dim, device=device)
    sinks = torch.randn(heads, device=device) if with_sinks else None

    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    shared = SharedPrefixes(ints(0, 5, 5), ints(128, 0), ints(*([128] * 5), 0, 0, 0))
    # When attended with what is shared read once
    out = paged_attention(
        q,
        pool[:, 1],
        tables,
        torch.arange(9, dtype=torch.int32, device=device),
        ints(*lengths),
        num_decodes=8,
        max_query_len=1,
        max_seq_len=300,
        scale=1 / math.sqrt(dim),
        sinks=sinks,
        shared=shared,
    )
    # Then every row is as if it had read all of its own context
    host_sinks = None if sinks is None else sinks.cpu()
    for row, (k, v) in enumerate(contents[:-1]):
        expected = _expected(q[row : row + 1].cpu(), k, v, 0, 0.0, host_sinks)
        torch.testing.assert_close(out[row : row + 1].double().cpu(), expected, atol=5e-6, rtol=2e-5)
    assert bool(torch.isfinite(out).all())


@pytest.mark.parametrize("window", [0, 70])
@pytest.mark.parametrize("num_decodes", [0, 2])
def test_a_padded_batch_equals_float64_and_its_padding_is_zero(device: str, window: int, num_decodes: int) -> None:
    # Given room for four decodes and three chunks, of which some are there, and tokens beyond the last chunk
    heads, kv_heads, dim = 4, 2, 16
    decodes, chunks = [200, 33][:num_decodes], [(9, 240), (3, 3)]
    lengths = decodes + [total for _, total in chunks]
    pool, tables, contents = _filled_cache(device, lengths, 0, 0, heads=heads, kv_heads=kv_heads, dim=dim)
    count = num_decodes + 12
    q = torch.randn(count + 5, heads, dim, device=device)
    q[count:] = float("nan")
    padded_tables = torch.zeros(7, tables.shape[1], dtype=torch.int32, device=device)
    padded_tables[:num_decodes], padded_tables[4:6] = tables[:num_decodes], tables[num_decodes:]
    lens = torch.tensor([*decodes, *([0] * (4 - num_decodes)), 240, 3, 0], dtype=torch.int32, device=device)
    bounds = [0, 0, 0, 0, num_decodes, num_decodes + 9, count, count]
    # When attended in one call
    out = paged_attention(
        q,
        pool[:, 1],
        padded_tables,
        torch.tensor(bounds, dtype=torch.int32, device=device),
        lens,
        num_decodes=4,
        max_query_len=9,
        max_seq_len=300,
        scale=1 / math.sqrt(dim),
        window=window,
        padded=True,
    )
    # Then every row is right and the padding is zero
    starts = [*range(num_decodes), num_decodes, num_decodes + 9, count]
    for i, (k, v) in enumerate(contents):
        rows = slice(starts[i], starts[i + 1])
        expected = _expected(q[rows].cpu(), k, v, window, 0.0, None)
        torch.testing.assert_close(out[rows].double().cpu(), expected, atol=5e-6, rtol=2e-5)
    assert not bool(out[count:].any())


def test_a_short_chunk_over_a_long_context_equals_float64(device: str) -> None:
    # Given a decode and a chunk of five over enough keys for several parts
    heads, kv_heads, dim, total = 2, 1, 16, 1100
    pool = torch.full((80, 1, 2, kv_heads, 16, dim), float("nan"), device=device)
    pages = torch.randperm(79, device=device)[:70].add(1).int()
    k, v = (torch.randn(total, kv_heads, dim, device=device) for _ in range(2))
    slots = pages.long()[torch.arange(total, device=device) // 16] * 16 + torch.arange(total, device=device) % 16
    kv_write(k, v, pool[:, 0], slots)
    q = torch.randn(6, heads, dim, device=device)
    # When attended
    out = paged_attention(
        q,
        pool[:, 0],
        pages[None].repeat(2, 1),
        torch.tensor([0, 1, 6], dtype=torch.int32, device=device),
        torch.tensor([40, total], dtype=torch.int32, device=device),
        num_decodes=1,
        max_query_len=5,
        max_seq_len=total,
        scale=0.25,
    )
    # Then both are right
    expected = _expected(q[1:].cpu(), k.cpu(), v.cpu(), 0, 0.0, None)
    torch.testing.assert_close(out[1:].double().cpu(), expected, atol=5e-6, rtol=2e-5)
    alone = _expected(q[:1].cpu(), k[:40].cpu(), v[:40].cpu(), 0, 0.0, None)
    torch.testing.assert_close(out[:1].double().cpu(), alone, atol=5e-6, rtol=2e-5)

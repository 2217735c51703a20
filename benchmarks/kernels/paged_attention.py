"""Decode over long and short contexts, bf16 and fp8; prefill whole and over a cached prefix; and the page layout.

The layout: one pool of pages [page, layer, 2, head, slot, dim] against a tensor a layer, with pools beyond 100 GiB, as
the address translation of so much memory is part of the question.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.kernels.common import randn, report, seconds_per_call
from kernels.paged_attention import paged_attention

HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 16
TOKEN_BYTES = 2 * KV_HEADS * DIM * 2


def main() -> None:
    _decode()
    _prefill()
    _layout()


def _attend(
    q: torch.Tensor, table: torch.Tensor, query_len: int, seq_len: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Attention over one layer's cache of sequences of equal lengths."""
    num_seqs = table.shape[0]
    device = q.device
    starts = torch.arange(num_seqs + 1, dtype=torch.int32, device=device) * query_len
    lens = torch.full((num_seqs,), seq_len, dtype=torch.int32, device=device)
    decodes = num_seqs if query_len == 1 else 0
    options = {"num_decodes": decodes, "max_query_len": query_len, "max_seq_len": seq_len, "scale": DIM**-0.5}
    return lambda cache: paged_attention(q, cache, table, starts, lens, **options)


def _table(num_seqs: int, seq_len: int, num_pages: int) -> torch.Tensor:
    columns = -(-seq_len // PAGE)
    pages = torch.randperm(num_pages - 1, device="cuda")[: num_seqs * columns] + 1
    return pages.view(num_seqs, columns).int()


def _decode() -> None:
    pool = randn(64 * 256 + 1, 4, 2, KV_HEADS, PAGE, DIM)
    small = pool.to(torch.float8_e4m3fn)
    for num_seqs, seq_len in ((64, 4096), (64, 300), (256, 300), (16, 16384), (1, 300), (1, 4096)):
        table = _table(num_seqs, seq_len, pool.shape[0])
        call = _attend(randn(num_seqs, HEADS, DIM), table, 1, seq_len)
        num_bytes = num_seqs * seq_len * TOKEN_BYTES
        seconds = seconds_per_call(lambda i, c=call: c(pool[:, i % 4]))
        report("paged_attention", f"decode {num_seqs} x {seq_len}", seconds, num_bytes=num_bytes)
        seconds = seconds_per_call(lambda i, c=call: c(small[:, i % 4]))
        report("paged_attention", f"decode {num_seqs} x {seq_len} fp8", seconds, num_bytes=num_bytes / 2)


def _prefill() -> None:
    pool = randn(64 * 256 + 1, 4, 2, KV_HEADS, PAGE, DIM)
    for num_seqs, new, seq_len in ((64, 4096, 4096), (2, 4096, 4096), (1, 8192, 16384), (16, 512, 512)):
        table = _table(num_seqs, seq_len, pool.shape[0])
        call = _attend(randn(num_seqs * new, HEADS, DIM), table, new, seq_len)
        flops = 4 * num_seqs * HEADS * DIM * (new * (seq_len - new) + new * (new + 1) / 2)
        seconds = seconds_per_call(lambda i, c=call: c(pool[:, i % 4]), 4, 3)
        report("paged_attention", f"prefill {num_seqs} x {new} of {seq_len}", seconds, flops=flops)


def _layout() -> None:
    layers, num_seqs, seq_len = 32, 64, 4096
    pages = (104 << 30) // (layers * PAGE * TOKEN_BYTES)
    table = _table(num_seqs, seq_len, pages)
    call = _attend(randn(num_seqs, HEADS, DIM), table, 1, seq_len)
    for case, views in (("one pool", _one_pool), ("a tensor a layer", _tensors)):
        caches = views(pages, layers, table)
        seconds = seconds_per_call(lambda i, c=caches: call(c[i % layers]), layers, 3)
        num_bytes = num_seqs * seq_len * TOKEN_BYTES
        report("paged_attention", f"104 GiB, {case}", seconds, num_bytes=num_bytes)
        del caches
        torch.cuda.empty_cache()


def _one_pool(pages: int, layers: int, table: torch.Tensor) -> list[torch.Tensor]:
    pool = torch.empty(pages, layers, 2, KV_HEADS, PAGE, DIM, device="cuda", dtype=torch.bfloat16)
    for page in table.flatten().tolist():
        pool[page].normal_()
    return [pool[:, layer] for layer in range(layers)]


def _tensors(pages: int, layers: int, table: torch.Tensor) -> list[torch.Tensor]:
    made = []
    for _ in range(layers):
        tensor = torch.empty(pages, 2, KV_HEADS, PAGE, DIM, device="cuda", dtype=torch.bfloat16)
        tensor[table.flatten().long()] = randn(table.numel(), 2, KV_HEADS, PAGE, DIM)
        made.append(tensor)
    return made

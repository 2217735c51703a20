"""Log-probabilities of chosen and most likely tokens, without a softmax tensor: one pass over the logits a row."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels._triton import dependent_launch, jit_for_varying, tl, uses_triton

_BLOCK = 4096


class Logprobs(NamedTuple):
    """chosen float32 [B]; ranks int64 [B], 1 = most likely; top float32 [B, k] and top_ids int64 [B, k], descending."""

    chosen: torch.Tensor
    ranks: torch.Tensor
    top: torch.Tensor
    top_ids: torch.Tensor


def logprobs_ref(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> Logprobs:
    x = torch.log_softmax(logits.float(), dim=-1)
    chosen = x.gather(1, token_ids.long()[:, None])
    top, top_ids = x.topk(num_top, dim=-1)
    return Logprobs(chosen[:, 0], (x > chosen).sum(-1) + 1, top, top_ids)


@jit_for_varying("ids_ptr")
def _logprobs_kernel(
    logits_ptr, ids_ptr, chosen_ptr, ranks_ptr, lse_ptr, row_stride, vocab, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0)
    row_ptr = logits_ptr + row.to(tl.int64) * row_stride
    picked = tl.load(row_ptr + tl.load(ids_ptr + row)).to(tl.float32)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    higher = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocab, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + cols, mask=cols < vocab, other=float("-inf")).to(tl.float32)
        new_best = tl.maximum(best, x)
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)
        total = total * tl.exp(best - shift) + tl.exp(x - shift)
        best = new_best
        higher += (x > picked).to(tl.int32)
    row_best = tl.max(best, axis=0)
    row_total = tl.sum(total * tl.exp(best - row_best), axis=0)
    lse = row_best + tl.log(row_total)
    tl.store(lse_ptr + row, lse)
    tl.store(chosen_ptr + row, picked - lse)
    tl.store(ranks_ptr + row, tl.sum(higher, axis=0).to(tl.int64) + 1)


def logprobs(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> Logprobs:
    """Natural-log probabilities of `token_ids` and of the `num_top` most likely tokens of each row.

    Args: logits [B, vocab] raw, last stride 1; token_ids int [B], each in [0, vocab); num_top from 0 to vocab.
    Raises: ValueError on other shapes.
    """
    num_rows, vocab = logits.shape
    if token_ids.shape != (num_rows,) or not 0 <= num_top <= vocab or logits.stride(1) != 1:
        raise ValueError(f"logprobs: ids {tuple(token_ids.shape)}, top {num_top} for logits {tuple(logits.shape)}")
    if not uses_triton(logits):
        return logprobs_ref(logits, token_ids, num_top)
    chosen, lse = (torch.empty(num_rows, dtype=torch.float32, device=logits.device) for _ in range(2))
    ranks = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows:
        _logprobs_kernel[(num_rows,)](
            logits,
            token_ids,
            chosen,
            ranks,
            lse,
            logits.stride(0),
            vocab,
            BLOCK=_BLOCK,
            num_warps=8,
            **dependent_launch(logits),
        )
    top, top_ids = logits.topk(num_top, dim=-1)
    return Logprobs(chosen, ranks, top.float() - lse[:, None], top_ids)

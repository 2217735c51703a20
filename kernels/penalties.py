"""Repetition, presence and frequency penalties, in place on a step's logits.

Repetition (arXiv:1909.05858) divides positive logits of tokens seen in prompt or output and multiplies negative ones;
frequency subtracts per occurrence in the output, presence once (OpenAI's definitions).
"""

from __future__ import annotations

import torch

from kernels._triton import dependent_launch, jit_for_varying, tl, triton, uses_triton

_BLOCK = 2048


def apply_penalties_ref(
    logits: torch.Tensor,
    rows: torch.Tensor,
    output_counts: torch.Tensor,
    in_prompt: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> None:
    counts, prompt = output_counts[rows.long()], in_prompt[rows.long()]
    x = logits.float()
    factor = torch.where((counts > 0) | prompt, repetition[:, None], torch.ones_like(x))
    x = torch.where(x > 0, x / factor, x * factor)
    logits.copy_(x - frequency[:, None] * counts - presence[:, None] * (counts > 0))


@jit_for_varying("rows_ptr", "repetition_ptr", "presence_ptr", "frequency_ptr")
def _penalties_kernel(
    logits_ptr,
    rows_ptr,
    counts_ptr,
    prompt_ptr,
    repetition_ptr,
    presence_ptr,
    frequency_ptr,
    logits_stride,
    counts_stride,
    prompt_stride,
    vocab,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0)
    repetition = tl.load(repetition_ptr + row)
    presence = tl.load(presence_ptr + row)
    frequency = tl.load(frequency_ptr + row)
    if (repetition == 1.0) & (presence == 0.0) & (frequency == 0.0):
        return
    state = tl.load(rows_ptr + row).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < vocab
    counts = tl.load(counts_ptr + state * counts_stride + cols, mask=mask, other=0)
    prompt = tl.load(prompt_ptr + state * prompt_stride + cols, mask=mask, other=0)
    pointers = logits_ptr + row.to(tl.int64) * logits_stride + cols
    x = tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
    generated = counts > 0
    factor = tl.where(generated | (prompt != 0), repetition, 1.0)
    x = tl.where(x > 0, x / factor, x * factor)
    x = x - frequency * counts.to(tl.float32) - tl.where(generated, presence, 0.0)
    tl.store(pointers, x, mask=mask)


def apply_penalties(
    logits: torch.Tensor,
    rows: torch.Tensor,
    output_counts: torch.Tensor,
    in_prompt: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> None:
    """Changes logits [B, vocab] in place; a row with neutral penalties costs nothing.

    Args: rows int [B], the row of each in the state tables; output_counts int [R, vocab], times generated; in_prompt
    bool [R, vocab]; repetition (1 = off), presence, frequency (0 = off) float32 [B].
    Raises: ValueError on other shapes.
    """
    num_rows, vocab = logits.shape
    if output_counts.shape[1] < vocab or in_prompt.shape != output_counts.shape or rows.shape != (num_rows,):
        raise ValueError(
            f"apply_penalties: logits {tuple(logits.shape)}, rows {tuple(rows.shape)}, "
            f"tables {tuple(output_counts.shape)} and {tuple(in_prompt.shape)} do not fit"
        )
    if not uses_triton(logits):
        apply_penalties_ref(
            logits, rows, output_counts[:, :vocab], in_prompt[:, :vocab], repetition, presence, frequency
        )
        return
    if not num_rows:
        return
    _penalties_kernel[(num_rows, triton.cdiv(vocab, _BLOCK))](
        logits,
        rows,
        output_counts,
        in_prompt,
        repetition,
        presence,
        frequency,
        logits.stride(0),
        output_counts.stride(0),
        in_prompt.stride(0),
        vocab,
        BLOCK=_BLOCK,
        num_warps=4,
        **dependent_launch(logits),
    )

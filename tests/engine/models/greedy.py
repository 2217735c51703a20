"""Comparing greedy tokens with a reference model's choices."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

NEAR_TIE = 1e-4


def assert_greedy(reference: PreTrainedModel, prompt: list[int], output: list[int], where: str) -> int:
    """Each token is the reference's best after those before it. Returns how many were clear choices.

    Checked along our own tokens: if every step agrees, so do the greedy texts; a near tie (two best logits nearer than
    1e-4) excuses that step only.
    """
    with torch.inference_mode():
        # Only the rows that chose: with a vocabulary of 262,144 the others cost more than all layers.
        ids = torch.tensor([prompt + output])
        logits = reference(ids, logits_to_keep=len(output) + 1).logits[0, :-1]
    best = logits.topk(2).values
    clear = best[:, 0] - best[:, 1] > NEAR_TIE
    wrong = (logits.argmax(-1) != torch.tensor(output)) & clear
    assert not wrong.any(), f"{where}: token {int(wrong.nonzero()[0])} of {output} is not the reference's choice"
    return int(clear.sum())

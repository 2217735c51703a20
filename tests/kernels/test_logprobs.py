"""Log-probabilities of chosen and top tokens against log_softmax."""

from __future__ import annotations

import pytest
import torch

from kernels.logprobs import logprobs, logprobs_ref


@pytest.mark.parametrize("vocab", [7, 5000])
def test_matches_log_softmax(device, vocab):
    logits = 5 * torch.randn(4, vocab, device=device)
    logits[2] += 1000.0  # exp would overflow
    logits[3, :3] = float("-inf")
    ids = torch.tensor([0, 3, vocab - 1, 1], device=device)
    actual, expected = logprobs(logits, ids, 3), logprobs_ref(logits, ids, 3)
    torch.testing.assert_close(actual.chosen, expected.chosen, rtol=1e-5, atol=2e-4)
    torch.testing.assert_close(actual.top, expected.top, rtol=1e-5, atol=2e-4)
    assert torch.equal(actual.top_ids, expected.top_ids)
    assert torch.equal(actual.ranks, expected.ranks)


def test_no_top_tokens_may_be_asked_for(device):
    assert logprobs(torch.randn(2, 9, device=device), torch.zeros(2).long().to(device), 0).top.shape == (2, 0)


def test_more_top_tokens_than_the_vocabulary_are_refused():
    with pytest.raises(ValueError, match="top 10"):
        logprobs(torch.zeros(1, 9), torch.zeros(1).long(), 10)

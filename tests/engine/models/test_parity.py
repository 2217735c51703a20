"""Every architecture says what transformers says: logits within 1e-4, greedy tokens the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.loader import load_model
from tests.engine.model_harness import PagedRun
from tests.engine.models.checkpoints import CASES, VOCAB, make_checkpoint

NUM_PROMPT, NUM_GREEDY = 45, 64


@pytest.mark.parametrize("case", CASES)
def test_logits_and_greedy_tokens_equal_transformers(case: str, tmp_path: Path) -> None:
    # Given a tiny random checkpoint and transformers' greedy continuation of a prompt
    torch.manual_seed(0)
    reference = make_checkpoint(case, tmp_path)
    prompt = torch.randint(3, VOCAB, (1, NUM_PROMPT))
    with torch.inference_mode():
        text = reference.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=NUM_GREEDY
        )
        expected = reference(text).logits[0]
    # When ours reads the same text whole, in chunks of 16, and token by token after the prompt
    model, _ = load_model(tmp_path, dtype="float32")
    tokens = text[0].tolist()
    whole = PagedRun(model).feed(tokens)
    chunked = PagedRun(model).feed_chunked(tokens, 16)
    run = PagedRun(model)
    stepped = torch.cat([run.feed(tokens[:NUM_PROMPT]), *(run.feed([t]) for t in tokens[NUM_PROMPT:])])
    # Then all logits agree, and so does every greedy token that is no near tie
    assert expected.abs().max() > 5, "the checkpoint's logits are spread too little to prove anything"
    for logits in (whole, chunked, stepped):
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
        best = logits.topk(2).values
        clear = (best[:, 0] - best[:, 1] > 1e-4)[NUM_PROMPT - 1 : -1]
        assert clear.sum() > NUM_GREEDY - 4
        assert (logits.argmax(-1)[NUM_PROMPT - 1 : -1] == text[0, NUM_PROMPT:])[clear].all()

"""Every architecture says what transformers says: logits within 1e-4, greedy tokens the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.loader import load_model
from tests.engine.model_harness import PagedRun
from tests.engine.models.checkpoints import CASES, LONGROPE, VOCAB, make_checkpoint

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


def test_a_served_context_picks_longropes_factors(tmp_path: Path) -> None:
    # Given a checkpoint whose original context is a quarter of its longest
    rope = {**LONGROPE, "original_max_position_embeddings": 128}
    reference = make_checkpoint("phi3_longrope", tmp_path, rope_parameters=rope, original_max_position_embeddings=128)
    ids = torch.randint(3, VOCAB, (1, 200), generator=torch.Generator().manual_seed(1))
    # When it serves more than the original context, then long texts equal transformers', which looks at each text
    model, _ = load_model(tmp_path)
    with torch.inference_mode():
        torch.testing.assert_close(PagedRun(model).feed(ids[0].tolist()), reference(ids).logits[0], atol=1e-4, rtol=0)
    # And when it serves no more than that, short ones do
    model, _ = load_model(tmp_path, max_model_len=128)
    with torch.inference_mode():
        torch.testing.assert_close(
            PagedRun(model).feed(ids[0, :100].tolist()), reference(ids[:, :100]).logits[0], atol=1e-4, rtol=0
        )

"""SmolLM2 from its packaged GGUF file says what transformers says on the same dequantised weights."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from engine.loader import load_model
from engine.tokenizer import Tokenizer
from tests.engine.model_harness import PagedRun

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, in a small village by the sea,",
    "1, 2, 3, 4, 5, 6,",
]


def test_logits_and_greedy_tokens_equal_transformers_in_fp32(smollm2_fp32: Path) -> None:
    # Given the same folder in both
    ours, _ = load_model(smollm2_fp32)
    theirs = AutoModelForCausalLM.from_pretrained(smollm2_fp32, dtype=torch.float32)
    tokenizer = Tokenizer.from_folder(smollm2_fp32)
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt)
        # When each continues greedily, ours in chunks of 5
        with torch.inference_mode():
            expected = theirs.generate(
                torch.tensor([ids]), do_sample=False, max_new_tokens=16, pad_token_id=0, eos_token_id=-1
            )[0].tolist()
            reference = theirs(torch.tensor([expected])).logits[0]
        logits = PagedRun(ours).feed_chunked(expected, 5)
        # Then every position's logits agree, and so do the tokens
        torch.testing.assert_close(logits, reference, atol=1e-3, rtol=1e-4)
        assert logits[len(ids) - 1 : -1].argmax(-1).tolist() == expected[len(ids) :]

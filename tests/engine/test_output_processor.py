"""From token ids to deltas: whole characters, stop strings, logprobs, best_of, failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.core_output import CoreOutput, TokenScore
from engine.errors import EngineError, RequestFailed
from engine.output_processor import OutputProcessor
from engine.tokenizer import Tokenizer
from engine.types import Delta, EngineRequest, FinishReason, SamplingParams


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Tokenizer:
    return Tokenizer.from_folder(smollm2)


class Bench:
    """A processor with one request; `stopped` are the sequences it ended by their text."""

    def __init__(self, tokenizer: Tokenizer, **sampling: Any) -> None:
        self.tokenizer = tokenizer
        self.stopped: list[tuple[str, int]] = []
        self.processor = OutputProcessor(tokenizer, lambda name, index: self.stopped.append((name, index)))
        self.processor.add(
            EngineRequest(
                request_id="r", prompt_token_ids=[1, 2, 3], sampling=SamplingParams(**sampling), cache_salt=b"s"
            )
        )

    def feed(self, *token_ids: int, index: int = 0, **fields: Any) -> list[Any]:
        output = CoreOutput(
            request_id="r", index=index, token_ids=list(token_ids), prompt_tokens=3, cached_tokens=0, **fields
        )
        return self.processor.process(output)

    def feed_text(self, text: str, **fields: Any) -> list[Any]:
        """Token by token; the fields come with the last one."""
        ids = self.tokenizer.encode(text, add_bos=False)
        found = [item for token_id in ids[:-1] for item in self.feed(token_id)]
        return found + self.feed(ids[-1], **fields)


def _text(items: list[Delta | EngineError]) -> str:
    return "".join(item.text for item in items if isinstance(item, Delta))


def test_no_delta_ever_holds_half_a_character(tokenizer: Tokenizer) -> None:
    text = "naïve 🧑‍🚀 日本語 ≠ ok"
    bench = Bench(tokenizer)
    deltas = bench.feed_text(text, finish_reason=FinishReason.LENGTH, request_done=True, engine_us=9)
    assert _text(deltas) == text
    assert all("\ufffd" not in delta.text for delta in deltas)
    assert len(deltas) > len(text.split())  # token by token, some of them empty
    assert (deltas[-1].last, deltas[-1].engine_us, deltas[-1].completion_tokens) == (True, 9, len(deltas))


def test_an_unfinished_character_at_the_end_becomes_one_replacement(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    ids = tokenizer.encode("🧑", add_bos=False)
    assert len(ids) > 1
    deltas = bench.feed(*ids[:-1], finish_reason=FinishReason.LENGTH)
    assert _text(deltas) == "\ufffd"


@pytest.mark.parametrize(("include", "expected"), [(False, "A B C "), (True, "A B C D E")])
@pytest.mark.parametrize("at_once", [False, True])
def test_a_stop_string_ends_the_sequence_once_and_counts_its_tokens(
    tokenizer: Tokenizer, include: bool, expected: str, at_once: bool
) -> None:
    bench = Bench(tokenizer, stop=("D E",), include_stop_str_in_output=include)
    ids = tokenizer.encode("A B C D E F G", add_bos=False)
    items = bench.feed(*ids) if at_once else [item for token_id in ids for item in bench.feed(token_id)]
    assert _text(items) == expected
    assert (items[-1].finish_reason, items[-1].stop_reason, items[-1].last) == (FinishReason.STOP, "D E", True)
    assert items[-1].completion_tokens == len(tokenizer.encode("A B C D E", add_bos=False))
    assert bench.stopped == [("r", 0)]
    assert bench.feed(5) == []  # what the core had under way is dropped


def test_text_held_back_for_a_stop_string_comes_when_the_sequence_ends(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, stop=("DEFGHIJ",))
    items = bench.feed_text("ABC DEFG", finish_reason=FinishReason.LENGTH)
    assert _text(items) == "ABC DEFG"
    assert items[-1].finish_reason is FinishReason.LENGTH


def test_min_tokens_holds_stop_strings_off(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, stop=(" B",), min_tokens=3)
    items = bench.feed_text("A B C B D")
    assert _text(items) == "A B C"


def test_the_end_tokens_own_text_is_no_part_of_the_answer(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, skip_special_tokens=False)
    (end,) = tokenizer.encode("<|im_end|>", add_bos=False, allow_special=True)
    (word,) = tokenizer.encode("Paris", add_bos=False)
    (delta,) = bench.feed(word, end, finish_reason=FinishReason.STOP, ends_by_token=True)
    assert (delta.text, delta.completion_tokens, delta.token_ids) == ("Paris", 2, [word, end])
    # A grammar that is complete ends on a token that belongs to it
    (delta,) = Bench(tokenizer).feed(word, finish_reason=FinishReason.STOP)
    assert delta.text == "Paris"


def test_logprobs_carry_text_bytes_rank_and_the_top(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, logprobs=2, prompt_logprobs=1)
    half = tokenizer.encode("🧑", add_bos=False)[0]
    (word,) = tokenizer.encode("Paris", add_bos=False)
    prompt = [TokenScore(2, -1.0, 3, (7,), (-0.1,)), TokenScore(3, -2.0, 9, (8,), (-0.2,))]
    (delta,) = bench.feed(half, scores=[TokenScore(half, -0.5, 2, (word, half), (-0.4, -0.5))], prompt_scores=prompt)
    (scored,) = delta.logprobs
    assert scored.bytes == tokenizer.token_bytes(half)
    assert "\ufffd" in scored.text
    assert (scored.top[0].text, scored.top[0].rank) == ("Paris", 1)
    assert [None if item is None else item.token_id for item in delta.prompt_logprobs] == [None, 2, 3]
    (second,) = bench.feed(word, scores=[TokenScore(word, -0.1, 1)])
    assert second.prompt_logprobs is None


def test_several_sequences_end_with_one_last_delta(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, n=2)
    (first,) = bench.feed(504, index=0, finish_reason=FinishReason.LENGTH, engine_us=3)
    (second,) = bench.feed(505, index=1, finish_reason=FinishReason.LENGTH, request_done=True, engine_us=8)
    assert (first.last, second.last, second.engine_us) == (False, True, 8)


def test_best_of_gives_the_likeliest_whole_and_only_at_the_end(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, n=1, best_of=2)
    assert bench.feed(504, index=0, scores=[TokenScore(504, -3.0, 1)]) == []
    assert bench.feed(505, index=1, scores=[TokenScore(505, -1.0, 1)]) == []
    assert bench.feed(506, index=1, scores=[TokenScore(506, -1.0, 1)], finish_reason=FinishReason.LENGTH) == []
    done = bench.feed(507, index=0, scores=[TokenScore(507, -0.1, 1)], finish_reason=FinishReason.LENGTH)
    (best,) = done
    assert (best.index, best.token_ids, best.last) == (0, [505, 506], True)  # -1.0 a token beats -1.55


def test_a_failure_ends_the_request_and_its_siblings(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, n=3)
    (error,) = bench.feed(index=1, finish_reason=FinishReason.ERROR, error="no finite logits")
    assert isinstance(error, RequestFailed)
    assert bench.stopped == [("r", 0), ("r", 1), ("r", 2)]
    assert bench.feed(504) == []


def test_an_unknown_requests_output_is_dropped(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    bench.processor.forget("r")
    bench.processor.forget("r")
    assert bench.feed(504) == []

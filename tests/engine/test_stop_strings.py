"""Stop strings across any borders between pieces: nothing of a stop text leaves early, nothing else is lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.stop_strings import AnswerStopFinder, StopFinder
from engine.types import Unstopped


def _feed(pieces: list[str], stops: tuple[str, ...], *, include: bool = False) -> tuple[str, str | None]:
    finder = StopFinder(stops, include=include)
    text = "".join(finder.push(piece) for piece in pieces)
    return text + finder.flush(), finder.found


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(
    "pieces", [["ABCDEFGHIJKLM"], list("ABCDEFGHIJKLM"), ["AB", "CD", "EFG", "HIJ", "KLM"], ["ABC", "DEFGH", "IJKLM"]]
)
def test_the_alphabet_is_cut_the_same_whatever_the_pieces(pieces: list[str], include: bool) -> None:
    assert _feed(pieces, ("DE",), include=include) == ("ABCDE" if include else "ABC", "DE")
    assert _feed(pieces, ("DEFGHIJ",), include=include) == ("ABCDEFGHIJ" if include else "ABC", "DEFGHIJ")
    assert _feed(pieces, ("XYZ",), include=include) == ("ABCDEFGHIJKLM", None)


def test_no_character_of_a_stop_text_leaves_early() -> None:
    finder = StopFinder(("DEFGHIJ",))
    assert [finder.push(c) for c in "ABCDEFGHI"] == ["A", "B", "C", "", "", "", "", "", ""]
    assert finder.push("X") == "DEFGHIX"


def test_the_stop_that_is_complete_first_wins_and_of_equals_the_longest() -> None:
    assert _feed(list("xabcd"), ("bcd", "bc")) == ("xa", "bc")
    assert _feed(["xabcd"], ("c", "abc")) == ("x", "abc")


@given(
    st.text("ab\n", max_size=30), st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=3), st.data()
)
def test_any_cutting_of_a_text_gives_what_the_whole_gives(text: str, stops: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))) | {0, len(text)})
    pieces = [text[a:b] for a, b in pairwise(cuts)]
    out, found = _feed(pieces, tuple(stops))
    ends = [text.find(s) + len(s) for s in stops if s in text]
    if not ends:
        assert (out, found) == (text, None)
        return
    assert found is not None
    assert text.startswith(out + found)
    assert len(out) + len(found) == min(ends)


@pytest.mark.parametrize(
    ("text", "is_open", "expected"),
    [
        ("<think>\nOne.\n\nTwo.</think>\n\nYes.\n\nMore.", False, "<think>\nOne.\n\nTwo.</think>\n\nYes."),
        ("One.\n\nTwo.</think>\n\nYes.\n\nMore.", True, "One.\n\nTwo.</think>\n\nYes."),
        ("\n<think></think>Yes.\n\n", False, "\n<think></think>Yes."),
        ("Yes.\n\n<think>No.</think>", False, "Yes."),
        ("<thin ice\n\n", False, "<thin ice"),
        (" \n\nYes.", False, " "),
        ("\n\n", False, ""),
        ("<think>One.\n\nTwo.", False, "<think>One.\n\nTwo."),
        ("One.\n\n</thin", True, "One.\n\n</thin"),
    ],
)
def test_a_stop_inside_the_reasoning_cuts_nothing_at_any_split(text: str, is_open: bool, expected: str) -> None:
    def fed(pieces: list[str]) -> tuple[str, str | None]:
        finder = AnswerStopFinder(("\n\n",), Unstopped("<think>", "</think>", is_open))
        out = "".join(finder.push(piece) for piece in pieces)
        return out + finder.flush(), finder.found

    whole = (expected, "\n\n" if text != expected else None)
    assert fed([text]) == whole
    assert fed(list(text)) == whole
    for cut in range(len(text)):
        assert fed([text[:cut], text[cut:]]) == whole, cut


def test_pieces_that_do_not_count_pass_the_reasoning_too() -> None:
    finder = AnswerStopFinder(("b",), Unstopped("<think>", "</think>"))
    assert [finder.push(piece, counts=False) for piece in ("<thi", "nk>b</think>", " b")] == [
        "",
        "<think>b</think>",
        " b",
    ]
    assert finder.push("ab") == "a"
    assert finder.found == "b"

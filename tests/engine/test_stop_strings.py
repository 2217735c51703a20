"""Stop strings across any borders between pieces: nothing of a stop text leaves early, nothing else is lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.stop_strings import StopFinder


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

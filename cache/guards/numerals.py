"""Numbers as people write them: digits, English words, ordinals, Roman and Chinese numerals."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cache.guards.lists import listed

_UNITS = dict(
    zip(
        listed(
            "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
            "seventeen eighteen nineteen"
        ),
        range(20),
        strict=True,
    )
)
_TENS = dict(zip(listed("twenty thirty forty fifty sixty seventy eighty ninety"), range(20, 100, 10), strict=True))
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "dozen": 12}
_ORDINALS = dict(
    zip(
        listed(
            "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth "
            "fifteenth sixteenth seventeenth eighteenth nineteenth twentieth"
        ),
        range(1, 21),
        strict=True,
    )
) | {"thirtieth": 30, "fortieth": 40, "fiftieth": 50, "hundredth": 100}

_DIGITS = re.compile(r"\d+(?:[.,:/]\d+)*%?")
_DIGIT_ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)", re.IGNORECASE)
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+")
_ROMAN = re.compile(r"(?=[IVX]{2,})X{0,3}(?:IX|IV|V?I{0,3})")
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10}


def ordinal_value(word: str) -> int | None:
    """3 for "third" and "3rd"."""
    match = _DIGIT_ORDINAL.fullmatch(word)
    return int(match[1]) if match else _ORDINALS.get(word.lower())


def read_number(tokens: Sequence[str], position: int) -> tuple[str | None, int]:
    """The number that starts at `position` in canonical form ("#443", "#o3" for an ordinal) and its tokens.

    (None, 1) if none does. A lone "one" is a pronoun more often than a number and is none. Versions keep their text:
    3.1 is not 3.10.
    """
    token = tokens[position]
    ordinal = ordinal_value(token)
    if ordinal is not None:
        return f"#o{ordinal}", 1
    if _THOUSANDS.fullmatch(token):
        return "#" + token.replace(",", ""), 1
    if _DIGITS.fullmatch(token):
        return "#" + token.rstrip("%"), 1
    if _ROMAN.fullmatch(token):
        return f"#{_roman_value(token)}", 1
    return _spelled(tokens, position)


def _spelled(tokens: Sequence[str], position: int) -> tuple[str | None, int]:
    total = current = length = 0
    for token in tokens[position:]:
        word = token.lower()
        if word in _UNITS:
            current += _UNITS[word]
        elif word in _TENS:
            current += _TENS[word]
        elif word in _SCALES and (length or word == "dozen"):
            current = max(current, 1) * _SCALES[word]
            if _SCALES[word] >= 1000:
                total, current = total + current, 0
        elif length and word in _ORDINALS:  # twenty-first
            return f"#o{total + current + _ORDINALS[word]}", length + 1
        else:
            break
        length += 1
    if length == 0 or (length == 1 and tokens[position].lower() == "one"):
        return None, 1
    return f"#{total + current}", length


def _roman_value(token: str) -> int:
    values = [_ROMAN_VALUES[char] for char in token]
    return sum(-v if any(later > v for later in values[i + 1 : i + 2]) else v for i, v in enumerate(values))


_HAN_DIGITS = {char: value for value, char in enumerate("零一二三四五六七八九")} | {"两": 2, "〇": 0}
_HAN_SCALES = {"十": 10, "百": 100, "千": 1000, "万": 10_000}


def han_value(numeral: str) -> int:
    """十五 -> 15, 二〇〇八 -> 2008, 两百 -> 200. `numeral` holds Chinese numeral characters only."""
    if not any(char in _HAN_SCALES for char in numeral):
        return int("".join(str(_HAN_DIGITS[char]) for char in numeral))
    total = current = 0
    for char in numeral:
        if char in _HAN_DIGITS:
            current = _HAN_DIGITS[char]
        elif char == "万":
            total, current = (total + current) * 10_000, 0
        else:
            total, current = total + max(current, 1) * _HAN_SCALES[char], 0
    return total + current

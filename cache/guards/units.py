"""Units of measure: 5 GHz is not 5 MHz, kilometres are not miles; km and kilometers are the same."""

from __future__ import annotations

from functools import lru_cache

from cache.guards.chinese import HanQuestion
from cache.guards.english import Question

_PREFIXES = {
    "kilo": "k", "mega": "M", "giga": "G", "tera": "T", "peta": "P", "milli": "m", "micro": "u", "nano": "n",
    "centi": "c", "deci": "d", "hecto": "h",
}  # fmt: skip
_BASES = {
    "meter": "m", "metre": "m", "gram": "g", "gramme": "g", "liter": "l", "litre": "l", "second": "s", "watt": "W",
    "volt": "V", "ampere": "A", "hertz": "Hz", "byte": "B", "bit": "bit", "joule": "J", "pascal": "Pa",
    "calorie": "cal", "newton": "N", "ohm": "Ohm",
}  # fmt: skip
_OTHERS = {
    "mile": "mi", "foot": "ft", "feet": "ft", "inch": "in", "inches": "in", "yard": "yd", "pound": "lb", "lbs": "lb",
    "ounce": "oz", "gallon": "gal", "pint": "pt", "stone": "st", "tonne": "t", "ton": "ton", "celsius": "°C",
    "fahrenheit": "°F", "kelvin": "K", "percent": "%", "hectare": "ha", "acre": "ac", "knot": "kn",
}  # fmt: skip
_SYMBOLS = frozenset(_OTHERS.values()) | {p + b for p in ("", *_PREFIXES.values()) for b in _BASES.values()}
_BY_CASELESS: dict[str, set[str]] = {}
for _symbol in sorted(_SYMBOLS):
    _BY_CASELESS.setdefault(_symbol.lower(), set()).add(_symbol)


@lru_cache(maxsize=4096)
def canonical_unit(word: str) -> str | None:
    """The symbol of a unit written out, in the plural, or as a symbol; rates by their parts (kbit/s). None for others.

    Symbols keep their case: Mb and MB are two, as are mW and MW.
    """
    if "/" in word:
        parts = [canonical_unit(part) for part in word.split("/")]
        return None if None in parts else "/".join(str(part) for part in parts)
    lowered = word.lower()
    for singular in (lowered, lowered.removesuffix("s")):
        if singular in _OTHERS:
            return _OTHERS[singular]
        for name, symbol in {"": "", **_PREFIXES}.items():
            base = singular.removeprefix(name)
            if singular.startswith(name) and base in _BASES:
                return symbol + _BASES[base]
    if word in _SYMBOLS:
        return word
    candidates = _BY_CASELESS.get(lowered, set())
    return next(iter(candidates)) if len(candidates) == 1 else None


def english(a: Question, b: Question) -> bool:
    """Whether the units behind numbers differ, or those in "in kilometers"."""
    return _units(a) != _units(b)


def _units(question: Question) -> list[str]:
    units = []
    for position, token in enumerate(question.content):
        after_number = position > 0 and question.content[position - 1].number
        if after_number or token.governor == "in":
            unit = canonical_unit(token.text)
            if unit is not None:
                units.append(unit)
    return sorted(units)


def chinese(a: HanQuestion, b: HanQuestion) -> bool:
    """Whether the measures behind numbers and 多少 differ: 多少克 and 多少斤."""
    return sorted(a.measures) != sorted(b.measures)

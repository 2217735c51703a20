"""Exact money: no float, one rounding, text in and out."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import Invalid
from billing.money import MAX_NANO_USD, charge, charge_up, format_usd, parse_percent, parse_usd


def test_a_thousand_charges_of_a_millionth_of_a_dollar_print_as_a_tenth_of_a_cent() -> None:
    assert format_usd(sum([1_000] * 1_000)) == "0.001"


def test_a_price_of_three_and_three_quarter_cents_a_million_with_15_percent_off_is_right() -> None:
    price = parse_usd("0.0375")
    assert price == 37_500_000
    assert charge(1_000_000, price, parse_percent("15 %")) == parse_usd("0.031875")


def test_two_and_a_half_million_dollars_and_a_nano_go_in_and_out_whole() -> None:
    assert format_usd(parse_usd("$2,500,000.370000001")) == "2500000.370000001"


@pytest.mark.parametrize(
    "text", ["1e3", "NaN", "inf", "", " ", "1.0000000001", "--1", "1,00", "$", "9" * 60, "0x10", "١"]
)
def test_what_is_not_an_exact_amount_is_refused_by_name(text: str) -> None:
    with pytest.raises(Invalid, match="limit"):
        parse_usd(text, param="limit")


@pytest.mark.parametrize("text", ["100,000,000.000000001", "-100000000.000000001", "9223372036"])
def test_an_amount_beyond_a_hundred_million_dollars_is_refused_by_its_limit(text: str) -> None:
    assert abs(parse_usd("100,000,000")) == MAX_NANO_USD
    with pytest.raises(Invalid, match="beyond the largest amount, 100000000 USD"):
        parse_usd(text)


@given(st.integers(min_value=-MAX_NANO_USD, max_value=MAX_NANO_USD))
def test_every_amount_survives_text(nano: int) -> None:
    assert parse_usd(format_usd(nano)) == nano


@given(
    st.integers(min_value=0, max_value=10**9),
    st.integers(min_value=0, max_value=10**15),
    st.integers(min_value=0, max_value=1_000_000),
)
def test_a_charge_is_the_decimal_product_rounded_half_even_once(tokens: int, price: int, ppm: int) -> None:
    exact = Decimal(tokens) * price * (1_000_000 - ppm) / Decimal(10**12)
    assert charge(tokens, price, ppm) == int(exact.quantize(Decimal(1), rounding=ROUND_HALF_EVEN))
    assert charge(tokens, price, ppm) <= charge_up(tokens, price, ppm) < exact + 1


def test_ties_go_to_the_even_neighbour() -> None:
    assert [charge(tokens, 500_000) for tokens in (1, 3, 5)] == [0, 2, 2]


@pytest.mark.parametrize(("text", "ppm"), [("15", 150_000), ("12.5 %", 125_000), ("0", 0), ("100%", 1_000_000)])
def test_percentages_are_parts_per_million(text: str, ppm: int) -> None:
    assert parse_percent(text) == ppm


@pytest.mark.parametrize("text", ["101", "-1", "1.00001", "half"])
def test_a_percentage_out_of_bounds_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_percent(text)

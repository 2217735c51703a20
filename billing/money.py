"""Exact money: whole numbers of nano-USD (1e-9 USD) for amounts, and of nano-USD per million tokens for prices.

$0.0375 a million is 37,500,000; no float is ever involved. An amount is multiplied out and rounded half-even to
nano-USD once per token class per row; what is held in advance rounds up, so that a settled amount never passes it.
"""

from __future__ import annotations

import re
from decimal import Decimal

from billing.errors import Invalid

NANO = 1_000_000_000
PPM = 1_000_000
MAX_NANO_USD = 10**17  # one amount: 100,000,000 USD, so that sums of many stay within the 64 bits of a BIGINT
_TOKENS_PER_PRICE = 1_000_000
_PLAIN = re.compile(r"-?\$?(\d{1,3}(,\d{3})+|\d+)(\.\d{1,9})?", re.ASCII)


def parse_usd(text: str, *, param: str = "amount") -> int:
    """Nano-USD from `12`, `0.0375`, `$2,500,000.370000001`.

    Raises: Invalid for anything else: floats' exponents, NaN, more than nine decimals, beyond
    100,000,000 USD either way.
    """
    cleaned = text.strip()
    if len(cleaned) > 40 or not _PLAIN.fullmatch(cleaned):
        raise Invalid(f"{param}: {text[:40]!r} is not an amount in USD with at most nine decimals", param=param)
    nano = int(Decimal(cleaned.replace("$", "").replace(",", "")).scaleb(9))
    if abs(nano) > MAX_NANO_USD:
        raise Invalid(f"{param}: {text!r} is beyond the largest amount, {format_usd(MAX_NANO_USD)} USD", param=param)
    return nano


def format_usd(nano: int) -> str:
    """The exact decimal without an exponent or trailing zeros: 1,000,000 nano-USD print as `0.001`."""
    sign, nano = ("-", -nano) if nano < 0 else ("", nano)
    whole, fraction = divmod(nano, NANO)
    digits = f"{fraction:09d}".rstrip("0")
    return f"{sign}{whole}.{digits}" if digits else f"{sign}{whole}"


def parse_percent(text: str, *, param: str = "discount") -> int:
    """Parts per million from `15`, `15%` or `12.5 %`: between 0 and 100 with at most four decimals. Raises: Invalid."""
    cleaned = text.strip().removesuffix("%").strip()
    if not re.fullmatch(r"\d{1,3}(\.\d{1,4})?", cleaned, re.ASCII):
        raise Invalid(f"{param}: {text[:40]!r} is not a percentage with at most four decimals", param=param)
    ppm = int(Decimal(cleaned).scaleb(4))
    if ppm > PPM:
        raise Invalid(f"{param}: {text!r} is more than 100 %", param=param)
    return ppm


def half_even(numerator: int, denominator: int) -> int:
    """numerator / denominator to the nearest whole number, ties to even; the denominator is positive."""
    quotient, rest = divmod(numerator, denominator)
    twice = 2 * rest
    if twice > denominator or (twice == denominator and quotient % 2):
        return quotient + 1
    return quotient


def charge(tokens: int, price: int, discount_ppm: int = 0, share_ppm: int = PPM) -> int:
    """Nano-USD for tokens at a price per million less a discount, or a share of it, rounded half-even once."""
    return half_even(tokens * price * (PPM - discount_ppm) * share_ppm, _TOKENS_PER_PRICE * PPM * PPM)


def charge_up(tokens: int, price: int, discount_ppm: int = 0, share_ppm: int = PPM) -> int:
    """As `charge`, rounded up: what a hold takes."""
    return -(-(tokens * price * (PPM - discount_ppm) * share_ppm) // (_TOKENS_PER_PRICE * PPM * PPM))

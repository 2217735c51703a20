"""A price in force, multiplied out: five token classes, each rounded once; what a hold takes rounds up."""

from __future__ import annotations

import msgspec

from billing.errors import Invalid
from billing.money import PPM, charge, charge_up


class TokenCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The five classes; they do not overlap. `of` makes them from a usage as engines and upstreams report it."""

    input: int = 0
    cached_input: int = 0
    output: int = 0
    batch_input: int = 0
    batch_output: int = 0

    @classmethod
    def of(
        cls, *, prompt_tokens: int, cached_tokens: int = 0, completion_tokens: int = 0, batch: bool = False
    ) -> TokenCounts:
        """`cached_tokens` are part of `prompt_tokens`. Raises: Invalid when negative or cached > prompt."""
        if min(prompt_tokens, cached_tokens, completion_tokens) < 0 or cached_tokens > prompt_tokens:
            counts = f"prompt {prompt_tokens}, cached {cached_tokens}, completion {completion_tokens}"
            raise Invalid(f"usage: {counts} do not fit together", param="usage")
        if batch:
            return cls(batch_input=prompt_tokens, batch_output=completion_tokens)
        return cls(input=prompt_tokens - cached_tokens, cached_input=cached_tokens, output=completion_tokens)

    @property
    def total(self) -> int:
        """All of them."""
        return self.input + self.cached_input + self.output + self.batch_input + self.batch_output


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    """Nano-USD by token class, each rounded half-even once; `total` is their exact sum."""

    input: int = 0
    cached_input: int = 0
    output: int = 0
    batch_input: int = 0
    batch_output: int = 0

    @property
    def total(self) -> int:
        """What the row charges."""
        return self.input + self.cached_input + self.output + self.batch_input + self.batch_output


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """A price in force for one tenant: nano-USD per million tokens and the discount that comes off.

    `share_ppm` is the part of the price that is charged: below a million for answers served again.
    """

    price_id: str
    model: str
    input: int
    cached_input: int
    output: int
    batch_input: int
    batch_output: int
    discount_ppm: int = 0
    share_ppm: int = PPM

    def shared(self, share_ppm: int) -> Rates:
        """The same price of which a share is charged. Raises: Invalid outside 0 to a million."""
        if not 0 <= share_ppm <= PPM:
            raise Invalid(f"share: {share_ppm} parts per million is not between 0 and {PPM}", param="share")
        return msgspec.structs.replace(self, share_ppm=share_ppm)

    @property
    def free(self) -> bool:
        """Zero in every class, as somebody wrote down: no budget is asked."""
        if self.discount_ppm == PPM or self.share_ppm == 0:
            return True
        return not (self.input or self.cached_input or self.output or self.batch_input or self.batch_output)

    def amounts(self, tokens: TokenCounts) -> Amounts:
        """What the tokens cost."""
        return Amounts(
            input=charge(tokens.input, self.input, self.discount_ppm, self.share_ppm),
            cached_input=charge(tokens.cached_input, self.cached_input, self.discount_ppm, self.share_ppm),
            output=charge(tokens.output, self.output, self.discount_ppm, self.share_ppm),
            batch_input=charge(tokens.batch_input, self.batch_input, self.discount_ppm, self.share_ppm),
            batch_output=charge(tokens.batch_output, self.batch_output, self.discount_ppm, self.share_ppm),
        )

    def hold_prompt(self, prompt_tokens: int, *, batch: bool = False) -> int:
        """Nano-USD that cover the prompt however much of it is cached: the dearer rate, up, and one for the split."""
        rate = self.batch_input if batch else max(self.input, self.cached_input)
        amount = charge_up(prompt_tokens, rate, self.discount_ppm, self.share_ppm)
        return amount + 1 if amount and not batch else amount

    def hold_output(self, tokens: int, *, batch: bool = False) -> int:
        """Nano-USD that cover `tokens` of output, rounded up."""
        return charge_up(tokens, self.batch_output if batch else self.output, self.discount_ppm, self.share_ppm)

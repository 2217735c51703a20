"""`SpeculativeConfig`: what `--speculative-config` says, as JSON with vLLM's names."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """num_speculative_tokens: most drafts of a sequence in a step. prompt_lookup_max and _min: tokens at a sequence's
    end that must have come before, the longest match winning. disable_by_batch_size: with more sequences running than
    this, nobody drafts: a step's rows then cost what they bring.

    Raises: ValueError where min is above max.
    """

    method: Literal["ngram"]
    num_speculative_tokens: Annotated[int, Meta(ge=1, le=32)]
    prompt_lookup_max: Annotated[int, Meta(ge=1, le=32)] = 4
    prompt_lookup_min: Annotated[int, Meta(ge=1, le=32)] = 2
    disable_by_batch_size: Annotated[int, Meta(ge=1)] = 8

    def __post_init__(self) -> None:
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min {self.prompt_lookup_min} is above prompt_lookup_max {self.prompt_lookup_max}"
            )


def parse_speculative_config(text: str) -> SpeculativeConfig | None:
    """None for an empty text. Raises: ValueError naming the key and the bound."""
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=SpeculativeConfig)
    except msgspec.MsgspecError as exc:
        raise ValueError(f"speculative_config {text!r}: {exc}") from exc

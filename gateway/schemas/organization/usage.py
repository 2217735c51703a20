"""Usage and costs by time buckets."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

from billing.money import format_usd

R = TypeVar("R")
Words = tuple[str, ...]
Seconds = Annotated[int, Meta(ge=0, le=10**11)]


class UsageParams(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`start_time` inclusive, `end_time` exclusive; lists bare, repeated or with brackets."""

    start_time: Seconds
    end_time: Seconds | None = None
    bucket_width: Literal["1m", "1h", "1d"] = "1d"
    project_ids: Words = ()
    user_ids: Words = ()
    api_key_ids: Words = ()
    models: Words = ()
    batch: bool | None = None
    group_by: Words = ()
    limit: Annotated[int, Meta(ge=1)] | None = None
    page: str | None = None


class CostParams(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    start_time: Seconds
    end_time: Seconds | None = None
    bucket_width: Literal["1d"] = "1d"
    project_ids: Words = ()
    user_ids: Words = ()
    api_key_ids: Words = ()
    group_by: Words = ()
    limit: Annotated[int, Meta(ge=1)] | None = None
    page: str | None = None


class Bucket(msgspec.Struct, Generic[R], kw_only=True):
    """[start_time, end_time) in UTC; no results where nothing was used."""

    start_time: int
    end_time: int
    results: list[R]
    object: Literal["bucket"] = "bucket"


class UsagePage(msgspec.Struct, Generic[R], kw_only=True):
    """`next_page` is the next query's `page` while `has_more`."""

    data: list[Bucket[R]]
    has_more: bool
    next_page: str | None
    object: Literal["page"] = "page"


class CompletionsResult(msgspec.Struct, kw_only=True):
    """`input_tokens` include the cached ones. Dimensions not grouped by are null. Weir's tokens are all text."""

    input_tokens: int
    input_cached_tokens: int
    input_uncached_tokens: int
    input_text_tokens: int
    input_cached_text_tokens: int
    output_tokens: int
    output_text_tokens: int
    num_model_requests: int
    project_id: str | None
    api_key_id: str | None
    model: str | None
    batch: bool | None
    service_tier: str | None
    user_id: None = None
    input_cache_write_tokens: int = 0
    input_audio_tokens: int = 0
    input_cached_audio_tokens: int = 0
    output_audio_tokens: int = 0
    input_image_tokens: int = 0
    input_cached_image_tokens: int = 0
    output_image_tokens: int = 0
    object: Literal["organization.usage.completions.result"] = "organization.usage.completions.result"

    @classmethod
    def of(cls, row: dict[str, Any]) -> CompletionsResult:
        """From a bucket's sums."""
        cached = row["cached_input_tokens"]
        uncached = row["input_tokens"] + row["batch_input_tokens"]
        output = row["output_tokens"] + row["batch_output_tokens"]
        batch = row.get("batch")
        return cls(
            input_tokens=cached + uncached,
            input_cached_tokens=cached,
            input_uncached_tokens=uncached,
            input_text_tokens=uncached,
            input_cached_text_tokens=cached,
            output_tokens=output,
            output_text_tokens=output,
            num_model_requests=row["requests"],
            project_id=row.get("project_id"),
            api_key_id=row.get("key_id"),
            model=row.get("model"),
            batch=None if batch is None else bool(batch),
            service_tier=row.get("service_tier"),
        )


class EmbeddingsResult(msgspec.Struct, kw_only=True):
    input_tokens: int
    num_model_requests: int
    project_id: str | None
    api_key_id: str | None
    model: str | None
    user_id: None = None
    object: Literal["organization.usage.embeddings.result"] = "organization.usage.embeddings.result"

    @classmethod
    def of(cls, row: dict[str, Any]) -> EmbeddingsResult:
        """From a bucket's sums."""
        return cls(
            input_tokens=row["input_tokens"] + row["cached_input_tokens"] + row["batch_input_tokens"],
            num_model_requests=row["requests"],
            project_id=row.get("project_id"),
            api_key_id=row.get("key_id"),
            model=row.get("model"),
        )


class CostAmount(msgspec.Struct, kw_only=True):
    """`value` is a JSON number with every digit of the ledger's sum: no float is ever made of it here."""

    value: msgspec.Raw
    currency: Literal["usd"] = "usd"


class CostsResult(msgspec.Struct, kw_only=True):
    """`line_item` is `model, token class`; its quantity counts tokens."""

    amount: CostAmount
    line_item: str | None
    project_id: str | None
    api_key_id: str | None
    quantity: int | None
    quantity_unit: Literal["tokens"] | None
    object: Literal["organization.costs.result"] = "organization.costs.result"

    @classmethod
    def of(cls, row: dict[str, Any]) -> CostsResult:
        """From a bucket's sums."""
        quantity = row.get("quantity")
        return cls(
            amount=CostAmount(value=msgspec.Raw(format_usd(row["amount_nano_usd"]).encode())),
            line_item=row.get("line_item"),
            project_id=row.get("project_id"),
            api_key_id=row.get("key_id"),
            quantity=quantity,
            quantity_unit="tokens" if quantity is not None else None,
        )

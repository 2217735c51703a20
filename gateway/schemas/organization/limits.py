"""Rate limits and spend limits."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from billing.limits.rules import MAX_RATE
from gateway.schemas.organization.common import ListQuery

Count = Annotated[int, Meta(ge=0, le=MAX_RATE)]
UNLIMITED = MAX_RATE  # OpenAI's fields are integers: what nothing limits shows the largest rate there is
NANO_PER_CENT = 10_000_000


class RateLimitQuery(ListQuery, kw_only=True, forbid_unknown_fields=True):
    before: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class RateLimitWrite(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is left out stays. Images, audio and batch tokens have no limit of their own here: refused by name."""

    max_requests_per_1_minute: Count | None = None
    max_tokens_per_1_minute: Count | None = None
    max_requests_per_1_day: Count | None = None
    max_images_per_1_minute: int | None = None
    max_audio_megabytes_per_1_minute: int | None = None
    batch_1_day_max_input_tokens: int | None = None


# OpenAI's field -> our quota
QUOTA_OF = {
    "max_requests_per_1_minute": "rpm",
    "max_tokens_per_1_minute": "tpm",
    "max_requests_per_1_day": "rpd",
}
UNSUPPORTED = ("max_images_per_1_minute", "max_audio_megabytes_per_1_minute", "batch_1_day_max_input_tokens")


class RateLimitObject(msgspec.Struct, kw_only=True):
    """A project's limits for one model; the project's limits for all models show where the model has none."""

    id: str
    model: str
    max_requests_per_1_minute: int = UNLIMITED
    max_tokens_per_1_minute: int = UNLIMITED
    max_requests_per_1_day: int = UNLIMITED
    max_images_per_1_minute: int = 0
    max_audio_megabytes_per_1_minute: int = 0
    batch_1_day_max_input_tokens: int = 0
    object: Literal["project.rate_limit"] = "project.rate_limit"


class SpendLimitWrite(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`threshold_amount` in cents."""

    threshold_amount: Annotated[int, Meta(ge=0, le=900_000_000_000)]
    currency: Literal["USD"]
    interval: Literal["month"]


class Enforcement(msgspec.Struct, kw_only=True):
    """`enforcing`: the month's spending has reached the limit, requests are refused."""

    status: Literal["inactive", "enforcing"]


class SpendLimitObject(msgspec.Struct, kw_only=True):
    """The hard monthly budget; a fraction of a cent is left out of `threshold_amount`."""

    object: Literal["organization.spend_limit", "project.spend_limit"]
    threshold_amount: int
    enforcement: Enforcement
    currency: Literal["USD"] = "USD"
    interval: Literal["month"] = "month"


class SpendLimitDeleted(msgspec.Struct, kw_only=True):
    object: Literal["organization.spend_limit.deleted", "project.spend_limit.deleted"]
    deleted: Literal[True] = True

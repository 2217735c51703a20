"""The error envelope, for the OpenAPI document."""

from __future__ import annotations

import msgspec


class ErrorBody(msgspec.Struct, kw_only=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(msgspec.Struct, kw_only=True):
    error: ErrorBody

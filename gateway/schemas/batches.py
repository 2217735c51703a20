"""/v1/batches: OpenAI's batch object, and the lines of its files."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.schemas.common import Metadata

BatchEndpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]


class OutputExpiry(msgspec.Struct, kw_only=True):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=3600, le=2_592_000)]


class BatchRequest(msgspec.Struct, kw_only=True):
    """The body of POST /v1/batches."""

    input_file_id: Annotated[str, Meta(min_length=1, max_length=64)]
    endpoint: BatchEndpoint
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: OutputExpiry | None = None

    @staticmethod
    def supported_values(path: str) -> str | None:
        """The text of the supported values of the enum at `path`."""
        return _SUPPORTED.get(path)


_SUPPORTED = {
    "endpoint": "'/v1/chat/completions', '/v1/completions', '/v1/embeddings', and '/v1/responses'",
    "completion_window": "'24h'",
}


class InputLine(msgspec.Struct, kw_only=True):
    """One line of an input file."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: str
    body: dict[str, Any]


class LineError(msgspec.Struct, kw_only=True):
    code: str
    message: str
    param: str | None = None
    line: int | None = None


class LineErrors(msgspec.Struct, kw_only=True):
    data: list[LineError]
    object: Literal["list"] = "list"


class RequestCounts(msgspec.Struct, kw_only=True):
    total: int
    completed: int
    failed: int


class BatchObject(msgspec.Struct, kw_only=True):
    """OpenAI's batch object."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: str
    created_at: int
    expires_at: int
    request_counts: RequestCounts
    object: Literal["batch"] = "batch"
    errors: LineErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    metadata: dict[str, str] | None = None


class BatchList(msgspec.Struct, kw_only=True):
    data: list[BatchObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class LineResponse(msgspec.Struct, kw_only=True):
    status_code: int
    request_id: str
    body: Any


class OutputLine(msgspec.Struct, kw_only=True):
    """One line of an output or error file."""

    id: str
    custom_id: str
    response: LineResponse | None
    error: LineError | None = None

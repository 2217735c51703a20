"""/v1/batches: create, list, get, cancel."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from gateway.auth import principal_of, requires_key
from gateway.batches.store import BatchStore
from gateway.batches.worker import BatchWorker
from gateway.controllers.responses_spec import answers
from gateway.decoding import BodyDTO
from gateway.errors import InvalidRequest, NotFound
from gateway.files.store import FileStore
from gateway.schemas.batches import BatchList, BatchObject, BatchRequest, LineError, LineErrors, RequestCounts
from gateway.tables.batches import Batch, BatchStatus


class BatchController(Controller):
    """Many requests in one file, at batch priority and price."""

    path = "/v1/batches"
    tags = ("Batches",)
    guards = (requires_key,)

    @post(
        operation_id="CreateBatch",
        summary="Run the requests of a file",
        dto=BodyDTO[BatchRequest],
        return_dto=None,
        status_code=200,
        responses=answers(BatchObject, "The batch."),
    )
    async def create_batch(
        self,
        request: Request[Any, Any, Any],
        data: JSONBody[BatchRequest],
        batches: NamedDependency[BatchStore],
        files: NamedDependency[FileStore],
        batch_worker: NamedDependency[BatchWorker],
    ) -> Response[Any]:
        """Raises: InvalidRequest (400) for a file that is absent or of another purpose; RateLimited (429)."""
        principal = principal_of(request)
        try:
            file = await files.get(principal.tenant_id, principal.project_id, data.input_file_id)
        except NotFound as exc:
            raise InvalidRequest(exc.message, param="input_file_id", code="invalid_value") from exc
        if file.purpose != "batch":
            raise InvalidRequest(
                f"Invalid 'input_file_id': the file has the purpose '{file.purpose}', not 'batch'.",
                param="input_file_id",
                code="invalid_value",
            )
        batch = await batches.add(principal, data)
        batch_worker.nudge()
        return Response(batch_object(batch))

    @get(operation_id="ListBatches", summary="List batches")
    async def list_batches(
        self,
        request: Request[Any, Any, Any],
        batches: NamedDependency[BatchStore],
        limit: Annotated[int, QueryParameter(ge=1, le=100)] = 20,
        after: FromQuery[str | None] = None,
    ) -> Response[BatchList]:
        rows, has_more = await batches.page(principal_of(request), limit=limit, after=after)
        data = [batch_object(row) for row in rows]
        return Response(
            BatchList(
                data=data,
                has_more=has_more,
                first_id=data[0].id if data else None,
                last_id=data[-1].id if data else None,
            )
        )

    @get("/{batch_id:str}", operation_id="RetrieveBatch", summary="Get a batch")
    async def get_batch(
        self, request: Request[Any, Any, Any], batch_id: FromPath[str], batches: NamedDependency[BatchStore]
    ) -> Response[BatchObject]:
        """Raises: NotFound (404)."""
        return Response(batch_object(await batches.get(principal_of(request), batch_id)))

    @post("/{batch_id:str}/cancel", operation_id="CancelBatch", summary="Cancel a batch", status_code=200)
    async def cancel_batch(
        self,
        request: Request[Any, Any, Any],
        batch_id: FromPath[str],
        batches: NamedDependency[BatchStore],
        batch_worker: NamedDependency[BatchWorker],
    ) -> Response[BatchObject]:
        """Raises: NotFound (404), Conflict (409)."""
        batch = await batches.cancel(principal_of(request), batch_id)
        batch_worker.nudge()
        return Response(batch_object(batch))


def batch_object(batch: Batch) -> BatchObject:
    """OpenAI's object for a batch."""
    ended = _seconds(batch.ended_at)
    errors = [msgspec.convert(error, LineError) for error in batch.errors]
    return BatchObject(
        id=batch.id,
        endpoint=batch.endpoint,
        input_file_id=batch.input_file_id,
        completion_window=batch.completion_window,
        status=batch.status.value,
        created_at=int(batch.created_at.timestamp()),
        expires_at=int(batch.expires_at.timestamp()),
        request_counts=RequestCounts(total=batch.total, completed=batch.completed, failed=batch.failed),
        errors=LineErrors(data=errors) if errors else None,
        output_file_id=batch.output_file_id,
        error_file_id=batch.error_file_id,
        in_progress_at=_seconds(batch.in_progress_at),
        finalizing_at=_seconds(batch.finalizing_at),
        cancelling_at=_seconds(batch.cancelling_at),
        metadata=batch.metadata_ or None,
        completed_at=ended if batch.status is BatchStatus.COMPLETED else None,
        failed_at=ended if batch.status is BatchStatus.FAILED else None,
        expired_at=ended if batch.status is BatchStatus.EXPIRED else None,
        cancelled_at=ended if batch.status is BatchStatus.CANCELLED else None,
    )


def _seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())

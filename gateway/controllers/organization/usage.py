"""/v1/organization/usage/... and /costs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath

from billing.reports import usage
from billing.reports.usage import UsageQuery
from gateway.admin_auth import reads_books
from gateway.calls import Endpoint
from gateway.controllers.admin.base import By, Db
from gateway.controllers.organization.base import Organization, OrganizationController
from gateway.errors import NotFound, clip
from gateway.queries import takes_query
from gateway.schemas.organization.usage import (
    Bucket,
    CompletionsResult,
    CostParams,
    CostsResult,
    EmbeddingsResult,
    UsagePage,
    UsageParams,
)

V = TypeVar("V")

GENERATING = tuple(str(endpoint) for endpoint in Endpoint if endpoint is not Endpoint.EMBEDDINGS)
EMBEDDING = (str(Endpoint.EMBEDDINGS),)
# What OpenAI sells and Weir does not serve: their pages are well-formed and empty.
OTHERS = frozenset({
    "moderations", "images", "audio_speeches", "audio_transcriptions", "vector_stores", "code_interpreter_sessions",
    "file_search_calls", "web_search_calls",
})  # fmt: skip


class OrganizationUsageController(OrganizationController):
    """Tokens and money in UTC buckets. A member sees his project's."""

    path = "/v1/organization"
    tags = ("Organization",)
    guards = (reads_books,)

    @get(
        "/usage/completions", operation_id="usage-completions", summary="Completions usage", **takes_query(UsageParams)
    )
    async def completions(
        self, actor: By, organization: Organization, db: Db, params: NamedDependency[UsageParams]
    ) -> UsagePage[CompletionsResult]:
        """Everything that generates text, whichever API asked for it. Raises: InvalidRequest (400)."""
        async with db.read() as session:
            page = await usage.usage(session, actor, _query(params, organization.id, GENERATING))
        return _page(page, CompletionsResult.of, params.user_ids)

    @get("/usage/embeddings", operation_id="usage-embeddings", summary="Embeddings usage", **takes_query(UsageParams))
    async def embeddings(
        self, actor: By, organization: Organization, db: Db, params: NamedDependency[UsageParams]
    ) -> UsagePage[EmbeddingsResult]:
        """Raises: InvalidRequest (400)."""
        async with db.read() as session:
            page = await usage.usage(session, actor, _query(params, organization.id, EMBEDDING))
        return _page(page, EmbeddingsResult.of, params.user_ids)

    @get(
        "/usage/{kind:str}",
        operation_id="usage-others",
        summary="Usage of what is not served",
        **takes_query(UsageParams),
    )
    async def others(
        self,
        actor: By,
        organization: Organization,
        kind: FromPath[str],
        db: Db,
        params: NamedDependency[UsageParams],
    ) -> UsagePage[Any]:
        """Empty buckets. Raises: NotFound (404) for a kind that OpenAI has not either."""
        if kind not in OTHERS:
            raise NotFound(f"no such usage: {clip(kind)!r}", code="not_found")
        async with db.read() as session:
            page = await usage.usage(session, actor, _query(params, organization.id, (kind,)))
        return _page(page, lambda row: row, params.user_ids)

    @get("/costs", operation_id="usage-costs", summary="Costs", **takes_query(CostParams))
    async def costs(
        self, actor: By, organization: Organization, db: Db, params: NamedDependency[CostParams]
    ) -> UsagePage[CostsResult]:
        """What was charged, by UTC day, with every digit. Raises: InvalidRequest (400)."""
        async with db.read() as session:
            page = await usage.costs(session, actor, _query(params, organization.id, ()))
        return _page(page, CostsResult.of, params.user_ids)


def _query(params: UsageParams | CostParams, tenant_id: str, endpoints: tuple[str, ...]) -> UsageQuery:
    filters = {"endpoint": endpoints, "project": params.project_ids, "key": params.api_key_ids}
    if isinstance(params, UsageParams):
        filters["model"] = params.models
        filters["batch"] = () if params.batch is None else (str(params.batch),)
    return UsageQuery(
        start=datetime.fromtimestamp(params.start_time, UTC),
        end=datetime.fromtimestamp(params.end_time, UTC) if params.end_time is not None else None,
        width=params.bucket_width,
        group_by=tuple(dict.fromkeys(params.group_by)),
        tenant_id=tenant_id,
        filters={name: values for name, values in filters.items() if values},
        limit=params.limit,
        page=params.page,
    )


def _page(page: usage.UsagePage, view: Callable[[dict[str, Any]], V], user_ids: tuple[str, ...]) -> UsagePage[V]:
    """Weir keeps no people: what is asked of certain users is nothing."""
    buckets = [
        Bucket(
            start_time=bucket.start_time,
            end_time=bucket.end_time,
            results=[] if user_ids else [view(row) for row in bucket.results],
        )
        for bucket in page.buckets
    ]
    return UsagePage(data=buckets, has_more=page.next_page is not None, next_page=page.next_page)

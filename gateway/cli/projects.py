"""`weir projects`: business lines and cost centres of a tenant."""

from __future__ import annotations

from typing import Any

import click

from billing import tenants
from billing.tables import Project
from gateway.cli.books import Books, run_with_books
from gateway.cli.context import CliContext
from gateway.cli.output import json_option, print_rows
from gateway.cli.paging import fetch_all

COLUMNS = ["id", "tenant_id", "slug", "name", "status"]


def row_of(project: Project) -> dict[str, Any]:
    """A project as commands print it."""
    return {
        "id": project.id,
        "tenant_id": project.tenant_id,
        "slug": project.slug,
        "name": project.name,
        "status": str(project.status),
        "created_at": project.created_at.isoformat(),
    }


@click.group("projects")
def command() -> None:
    """Projects: business lines and cost centres. Keys belong to a project."""


@command.command("list")
@click.option("--tenant", help="Only this tenant's (slug or id).")
@click.option("--archived", is_flag=True, help="Archived ones too.")
@json_option
@click.pass_obj
def list_(obj: CliContext, tenant: str | None, archived: bool, as_json: bool) -> None:
    """Projects of all tenants, or of one."""

    async def work(books: Books) -> list[dict[str, Any]]:
        async with books.db.read() as session:
            owner = (await tenants.get_tenant(session, books.actor, tenant)).id if tenant else None
            found = await fetch_all(
                lambda after: tenants.list_projects(
                    session,
                    books.actor,
                    tenant_id=owner,
                    include_archived=archived,
                    after=after,
                    limit=tenants.MAX_PAGE,
                )
            )
        return [row_of(project) for project in found]

    print_rows(run_with_books(obj, work), COLUMNS, as_json=as_json, title="projects")


@command.command("create")
@click.argument("tenant")
@click.argument("name")
@click.option("--slug", help="Short name. Default: made from NAME.")
@json_option
@click.pass_obj
def create(obj: CliContext, tenant: str, name: str, slug: str | None, as_json: bool) -> None:
    """Make a project NAME of TENANT (slug or id)."""

    async def work(books: Books) -> dict[str, Any]:
        async with books.db.begin() as session:
            return row_of(await tenants.create_project(session, books.actor, tenant, name=name, slug=slug))

    print_rows([run_with_books(obj, work)], COLUMNS, as_json=as_json)


@command.command("archive")
@click.argument("project")
@click.option("--tenant", help="The tenant, when PROJECT is a slug.")
@json_option
@click.pass_obj
def archive(obj: CliContext, project: str, tenant: str | None, as_json: bool) -> None:
    """End PROJECT: its keys stop working on every gateway, its rows stay."""

    async def work(books: Books) -> dict[str, Any]:
        async with books.db.begin() as session:
            owner = (await tenants.get_tenant(session, books.actor, tenant)).id if tenant else None
            return row_of(await tenants.archive_project(session, books.actor, project, tenant=owner))

    print_rows([run_with_books(obj, work)], COLUMNS, as_json=as_json)

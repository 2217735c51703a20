"""Add stored_file file_piece batch batch_line."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

BIGINT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "stored_file",
        sa.Column("id", sa.String(length=64), nullable=False),
        *_owner("stored_file"),
        sa.Column("filename", sa.String(length=512), nullable=False),
        sa.Column("purpose", sa.String(length=32), nullable=False),
        sa.Column("size_bytes", BIGINT, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_stored_file"),
    )
    op.create_index("ix_stored_file_expires_at", "stored_file", ["expires_at"], unique=False)
    op.create_index(
        "ix_stored_file_tenant_id_project_id_id", "stored_file", ["tenant_id", "project_id", "id"], unique=False
    )
    op.create_table(
        "file_piece",
        sa.Column("file_id", sa.String(length=64), nullable=False),
        sa.Column("seq", BIGINT, autoincrement=False, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["file_id"], ["stored_file.id"], name="fk_file_piece_file_id_stored_file", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("file_id", "seq", name="pk_file_piece"),
    )
    op.create_table(
        "batch",
        sa.Column("id", sa.String(length=64), nullable=False),
        *_owner("batch"),
        sa.Column("key_id", sa.String(length=40), nullable=False),
        sa.Column("principal", sa.JSON(), nullable=False),
        sa.Column("endpoint", sa.String(length=64), nullable=False),
        sa.Column("input_file_id", sa.String(length=64), nullable=False),
        sa.Column("output_file_id", sa.String(length=64), nullable=True),
        sa.Column("error_file_id", sa.String(length=64), nullable=True),
        sa.Column("completion_window", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("errors", sa.JSON(), nullable=False),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.Column("total", BIGINT, nullable=False),
        sa.Column("completed", BIGINT, nullable=False),
        sa.Column("failed", BIGINT, nullable=False),
        sa.Column("lease_owner", sa.String(length=64), nullable=True),
        sa.Column("leased_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("in_progress_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finalizing_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancelling_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_batch"),
    )
    op.create_index("ix_batch_status_leased_until", "batch", ["status", "leased_until"], unique=False)
    op.create_index("ix_batch_tenant_id_project_id_id", "batch", ["tenant_id", "project_id", "id"], unique=False)
    op.create_table(
        "batch_line",
        sa.Column("batch_id", sa.String(length=64), nullable=False),
        sa.Column("number", BIGINT, autoincrement=False, nullable=False),
        sa.Column("custom_id", sa.String(length=512), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("ok", sa.Boolean(), nullable=True),
        sa.ForeignKeyConstraint(["batch_id"], ["batch.id"], name="fk_batch_line_batch_id_batch", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("batch_id", "number", name="pk_batch_line"),
    )
    op.create_index("ix_batch_line_batch_id_ok_number", "batch_line", ["batch_id", "ok", "number"], unique=False)


def _owner(table: str) -> list[sa.schema.SchemaItem]:
    return [
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=f"fk_{table}_tenant_id_tenant", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["project_id"], ["project.id"], name=f"fk_{table}_project_id_project", ondelete="CASCADE"
        ),
    ]


def downgrade() -> None:
    op.drop_table("batch_line")
    op.drop_table("batch")
    op.drop_table("file_piece")
    op.drop_table("stored_file")

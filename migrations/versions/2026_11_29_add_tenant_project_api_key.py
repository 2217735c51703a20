"""Add tenant project api_key."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

# SQLite's INTEGER is 64 bits wide and the only type that counts up by itself.
BIGINT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tenant",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("slug", sa.String(length=63), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column(
            "status",
            sa.Enum("active", "suspended", "archived", name="status", native_enum=False, length=32),
            nullable=False,
        ),
        sa.Column("time_zone", sa.String(length=64), nullable=False),
        sa.Column("grace_nano_usd", BIGINT, nullable=False),
        sa.Column("cache_policy", sa.JSON(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tenant"),
        sa.UniqueConstraint("slug", name="uq_tenant_slug"),
    )
    op.create_table(
        "project",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("slug", sa.String(length=63), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column(
            "status",
            sa.Enum("active", "suspended", "archived", name="status", native_enum=False, length=32),
            nullable=False,
        ),
        sa.Column("external_key_id", sa.String(length=200), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("archived_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name="fk_project_tenant_id_tenant", ondelete="RESTRICT"),
        sa.PrimaryKeyConstraint("id", name="pk_project"),
        sa.UniqueConstraint("tenant_id", "slug", name="uq_project_tenant_id_slug"),
    )
    op.create_table(
        "api_key",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("public_id", sa.String(length=32), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("secret_version", BIGINT, nullable=False),
        sa.Column("previous_digest", sa.LargeBinary(length=32), nullable=True),
        sa.Column("previous_secret_version", BIGINT, nullable=True),
        sa.Column("previous_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("redacted", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("allowed_models", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("max_service_tier", sa.String(length=16), nullable=False),
        sa.Column("max_priority", BIGINT, nullable=False),
        sa.Column("owner_kind", sa.String(length=16), nullable=False),
        sa.Column("owner_name", sa.String(length=200), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("created_by", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["project_id"], ["project.id"], name="fk_api_key_project_id_project", ondelete="RESTRICT"
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name="fk_api_key_tenant_id_tenant", ondelete="RESTRICT"),
        sa.PrimaryKeyConstraint("id", name="pk_api_key"),
        sa.UniqueConstraint("public_id", name="uq_api_key_public_id"),
    )
    op.create_index("ix_api_key_project_id_id", "api_key", ["project_id", "id"], unique=False)
    op.create_index("ix_api_key_tenant_id_id", "api_key", ["tenant_id", "id"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_api_key_tenant_id_id", table_name="api_key")
    op.drop_index("ix_api_key_project_id_id", table_name="api_key")
    op.drop_table("api_key")
    op.drop_table("project")
    op.drop_table("tenant")

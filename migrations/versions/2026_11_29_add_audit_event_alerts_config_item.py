"""Add audit_event alerts config_item."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

# SQLite's INTEGER is 64 bits wide and the only type that counts up by itself.
BIGINT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "alert_endpoint",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("url", sa.String(length=2000), nullable=False),
        sa.Column("kinds", sa.JSON(), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_alert_endpoint"),
    )
    op.create_index("ix_alert_endpoint_tenant_id", "alert_endpoint", ["tenant_id"], unique=False)
    op.create_table(
        "alert_state",
        sa.Column("key", sa.String(length=300), nullable=False),
        sa.Column("fired_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_alert_state"),
    )
    op.create_table(
        "audit_event",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("effective_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("actor_kind", sa.String(length=16), nullable=False),
        sa.Column("actor_id", sa.String(length=64), nullable=False),
        sa.Column("actor_role", sa.String(length=16), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=True),
        sa.Column("project_id", sa.String(length=40), nullable=True),
        sa.Column("resource_id", sa.String(length=200), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=True),
        sa.Column("ip", sa.String(length=64), nullable=True),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_event"),
    )
    op.create_index("ix_audit_event_tenant_id_id", "audit_event", ["tenant_id", "id"], unique=False)
    op.create_table(
        "config_item",
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("version", BIGINT, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("kind", "name", name="pk_config_item"),
    )
    op.create_table(
        "alert_delivery",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("endpoint_id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempts", BIGINT, nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_error", sa.String(length=500), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["endpoint_id"],
            ["alert_endpoint.id"],
            name="fk_alert_delivery_endpoint_id_alert_endpoint",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_alert_delivery"),
    )
    op.create_index("ix_alert_delivery_state_next_at", "alert_delivery", ["state", "next_at"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_alert_delivery_state_next_at", table_name="alert_delivery")
    op.drop_table("alert_delivery")
    op.drop_table("config_item")
    op.drop_index("ix_audit_event_tenant_id_id", table_name="audit_event")
    op.drop_table("audit_event")
    op.drop_table("alert_state")
    op.drop_index("ix_alert_endpoint_tenant_id", table_name="alert_endpoint")
    op.drop_table("alert_endpoint")

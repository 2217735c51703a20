"""Add ledger_entry usage_rollup."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

# SQLite's INTEGER is 64 bits wide and the only type that counts up by itself.
BIGINT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "ledger_entry",
        sa.Column("id", BIGINT, autoincrement=True, nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("attempt", BIGINT, nullable=False),
        sa.Column(
            "kind",
            sa.Enum("usage", "cache_hit", "correction", "adjustment", name="entrykind", native_enum=False, length=32),
            nullable=False,
        ),
        sa.Column("seq", BIGINT, nullable=False),
        sa.Column("corrects_id", BIGINT, nullable=True),
        sa.Column("booked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("bucket", BIGINT, nullable=False),
        sa.Column("accepted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("key_id", sa.String(length=40), nullable=False),
        sa.Column("endpoint", sa.String(length=32), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("upstream", sa.String(length=64), nullable=False),
        sa.Column("upstream_model", sa.String(length=200), nullable=False),
        sa.Column("provider_id", sa.String(length=200), nullable=True),
        sa.Column("route", sa.String(length=64), nullable=False),
        sa.Column("conversation_id", sa.String(length=128), nullable=True),
        sa.Column("conversation_source", sa.String(length=16), nullable=False),
        sa.Column("end_user", sa.String(length=128), nullable=True),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("service_tier", sa.String(length=16), nullable=False),
        sa.Column("priority", BIGINT, nullable=False),
        sa.Column("stream", sa.Boolean(), nullable=False),
        sa.Column(
            "status",
            sa.Enum(
                "ok",
                "client_disconnect",
                "budget_cut",
                "timeout",
                "failed",
                "interrupted",
                name="entrystatus",
                native_enum=False,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("http_status", BIGINT, nullable=False),
        sa.Column("finish_reason", sa.String(length=32), nullable=True),
        sa.Column("error_code", sa.String(length=64), nullable=True),
        sa.Column("input_tokens", BIGINT, nullable=False),
        sa.Column("cached_input_tokens", BIGINT, nullable=False),
        sa.Column("output_tokens", BIGINT, nullable=False),
        sa.Column("batch_input_tokens", BIGINT, nullable=False),
        sa.Column("batch_output_tokens", BIGINT, nullable=False),
        sa.Column("reasoning_tokens", BIGINT, nullable=False),
        sa.Column("input_amount_nano", BIGINT, nullable=False),
        sa.Column("cached_input_amount_nano", BIGINT, nullable=False),
        sa.Column("output_amount_nano", BIGINT, nullable=False),
        sa.Column("batch_input_amount_nano", BIGINT, nullable=False),
        sa.Column("batch_output_amount_nano", BIGINT, nullable=False),
        sa.Column("adjustment_nano", BIGINT, nullable=False),
        sa.Column("amount_nano_usd", BIGINT, nullable=False),
        sa.Column("price_id", sa.String(length=40), nullable=True),
        sa.Column("discount_ppm", BIGINT, nullable=False),
        sa.Column("engine_us", BIGINT, nullable=False),
        sa.Column("cost_nano_usd", BIGINT, nullable=False),
        sa.Column("cost_version", sa.String(length=64), nullable=True),
        sa.Column("cache_outcome", sa.String(length=16), nullable=False),
        sa.Column("saved_input_tokens", BIGINT, nullable=False),
        sa.Column("saved_output_tokens", BIGINT, nullable=False),
        sa.Column("saved_nano_usd", BIGINT, nullable=False),
        sa.Column("ttft_us", BIGINT, nullable=True),
        sa.Column("latency_us", BIGINT, nullable=True),
        sa.Column("queue_us", BIGINT, nullable=True),
        sa.Column("origin", sa.String(length=16), nullable=False),
        sa.Column("note", sa.String(length=500), nullable=True),
        sa.CheckConstraint(
            "(kind = 'correction') = (corrects_id IS NOT NULL)", name="ck_ledger_entry_correction_names_its_row"
        ),
        sa.CheckConstraint(
            "kind = 'correction' OR (input_tokens >= 0 AND cached_input_tokens >= 0 AND output_tokens >= 0"
            " AND batch_input_tokens >= 0 AND batch_output_tokens >= 0)",
            name="ck_ledger_entry_tokens_not_negative",
        ),
        sa.CheckConstraint(
            "amount_nano_usd = input_amount_nano + cached_input_amount_nano + output_amount_nano"
            " + batch_input_amount_nano + batch_output_amount_nano + adjustment_nano",
            name="ck_ledger_entry_amounts_add_up",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_ledger_entry"),
        sa.UniqueConstraint("request_id", "attempt", "kind", "seq", name="uq_ledger_entry_request_id_attempt_kind_seq"),
    )
    op.create_index("ix_ledger_entry_bucket", "ledger_entry", ["bucket"], unique=False)
    op.create_index(
        "ix_ledger_entry_tenant_id_conversation_id", "ledger_entry", ["tenant_id", "conversation_id"], unique=False
    )
    op.create_index("ix_ledger_entry_tenant_id_id", "ledger_entry", ["tenant_id", "id"], unique=False)
    op.create_table(
        "rollup_mark",
        sa.Column("id", BIGINT, autoincrement=True, nullable=False),
        sa.Column("bucket", BIGINT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_rollup_mark"),
    )
    op.create_table(
        "usage_rollup",
        sa.Column("bucket", BIGINT, nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("key_id", sa.String(length=40), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("endpoint", sa.String(length=32), nullable=False),
        sa.Column("upstream", sa.String(length=64), nullable=False),
        sa.Column("service_tier", sa.String(length=16), nullable=False),
        sa.Column("batch", sa.Boolean(), nullable=False),
        sa.Column("cache_outcome", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("requests", BIGINT, nullable=False),
        sa.Column("input_tokens", BIGINT, nullable=False),
        sa.Column("cached_input_tokens", BIGINT, nullable=False),
        sa.Column("output_tokens", BIGINT, nullable=False),
        sa.Column("batch_input_tokens", BIGINT, nullable=False),
        sa.Column("batch_output_tokens", BIGINT, nullable=False),
        sa.Column("input_amount_nano", BIGINT, nullable=False),
        sa.Column("cached_input_amount_nano", BIGINT, nullable=False),
        sa.Column("output_amount_nano", BIGINT, nullable=False),
        sa.Column("batch_input_amount_nano", BIGINT, nullable=False),
        sa.Column("batch_output_amount_nano", BIGINT, nullable=False),
        sa.Column("adjustment_nano", BIGINT, nullable=False),
        sa.Column("amount_nano_usd", BIGINT, nullable=False),
        sa.Column("engine_us", BIGINT, nullable=False),
        sa.Column("cost_nano_usd", BIGINT, nullable=False),
        sa.Column("saved_input_tokens", BIGINT, nullable=False),
        sa.Column("saved_output_tokens", BIGINT, nullable=False),
        sa.Column("saved_nano_usd", BIGINT, nullable=False),
        sa.Column("latency_us", BIGINT, nullable=False),
        sa.PrimaryKeyConstraint(
            "bucket",
            "tenant_id",
            "project_id",
            "key_id",
            "model",
            "endpoint",
            "upstream",
            "service_tier",
            "batch",
            "cache_outcome",
            "status",
            name="pk_usage_rollup",
        ),
    )


def downgrade() -> None:
    op.drop_table("usage_rollup")
    op.drop_table("rollup_mark")
    op.drop_index("ix_ledger_entry_tenant_id_id", table_name="ledger_entry")
    op.drop_index("ix_ledger_entry_tenant_id_conversation_id", table_name="ledger_entry")
    op.drop_index("ix_ledger_entry_bucket", table_name="ledger_entry")
    op.drop_table("ledger_entry")

"""Add usage_by_model and usage_by_day, which long reports read; old buckets are marked, to be filled in."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

BIGINT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

SUMS = (
    "requests",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "batch_input_tokens",
    "batch_output_tokens",
    "input_amount_nano",
    "cached_input_amount_nano",
    "output_amount_nano",
    "batch_input_amount_nano",
    "batch_output_amount_nano",
    "adjustment_nano",
    "amount_nano_usd",
    "engine_us",
    "cost_nano_usd",
    "saved_input_tokens",
    "saved_output_tokens",
    "saved_nano_usd",
    "latency_us",
)


def upgrade() -> None:
    op.create_table("rollup_day", sa.Column("day", BIGINT, primary_key=True))
    op.create_table(
        "usage_by_model",
        sa.Column("bucket", BIGINT, nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        *(sa.Column(name, BIGINT, nullable=False) for name in SUMS),
        sa.PrimaryKeyConstraint("bucket", "tenant_id", "model", name="pk_usage_by_model"),
    )
    op.create_table(
        "usage_by_day",
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
        *(sa.Column(name, BIGINT, nullable=False) for name in SUMS),
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
            name="pk_usage_by_day",
        ),
    )
    op.create_index("ix_rollup_mark_bucket", "rollup_mark", ["bucket"], unique=False)
    # What is rolled up already has no row in the new tables: the roller fills them from these marks.
    op.execute("INSERT INTO rollup_mark (bucket) SELECT DISTINCT bucket FROM usage_rollup")


def downgrade() -> None:
    op.drop_index("ix_rollup_mark_bucket", table_name="rollup_mark")
    op.drop_table("usage_by_day")
    op.drop_table("usage_by_model")
    op.drop_table("rollup_day")

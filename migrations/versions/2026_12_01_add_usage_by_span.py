"""Add usage_by_span, which reports by tenant and model read: three hours a row, filled from the 15 minutes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

BIGINT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

SPAN_S = 10_800
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
    keys = ("tenant_id", "model")
    spans = op.create_table(
        "usage_by_span",
        sa.Column("bucket", BIGINT, nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        *(sa.Column(name, BIGINT, nullable=False) for name in SUMS),
        sa.PrimaryKeyConstraint("bucket", *keys, name="pk_usage_by_span"),
    )
    quarters = sa.table("usage_by_model", *(sa.column(name) for name in ("bucket", *keys, *SUMS)))
    start = quarters.c.bucket - quarters.c.bucket % sa.literal_column(str(SPAN_S))
    groups = (start, *(quarters.c[name] for name in keys))
    sums = (sa.cast(sa.func.sum(quarters.c[name]), sa.BigInteger()) for name in SUMS)
    op.execute(sa.insert(spans).from_select(["bucket", *keys, *SUMS], sa.select(*groups, *sums).group_by(*groups)))


def downgrade() -> None:
    op.drop_table("usage_by_span")

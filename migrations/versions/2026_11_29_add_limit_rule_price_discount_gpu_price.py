"""Add limit_rule price discount gpu_price."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

# SQLite's INTEGER is 64 bits wide and the only type that counts up by itself.
BIGINT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "gpu_price",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("upstream", sa.String(length=64), nullable=False),
        sa.Column("hour_nano", BIGINT, nullable=False),
        sa.Column("effective_from", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=64), nullable=False),
        sa.CheckConstraint("hour_nano >= 0", name="ck_gpu_price_not_negative"),
        sa.PrimaryKeyConstraint("id", name="pk_gpu_price"),
        sa.UniqueConstraint("upstream", "effective_from", name="uq_gpu_price_upstream_effective_from"),
    )
    op.create_table(
        "price",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("service_tier", sa.String(length=16), nullable=False),
        sa.Column("input_nano", BIGINT, nullable=False),
        sa.Column("cached_input_nano", BIGINT, nullable=False),
        sa.Column("output_nano", BIGINT, nullable=False),
        sa.Column("batch_input_nano", BIGINT, nullable=False),
        sa.Column("batch_output_nano", BIGINT, nullable=False),
        sa.Column("effective_from", sa.DateTime(timezone=True), nullable=False),
        sa.Column("effective_to", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=64), nullable=False),
        sa.CheckConstraint("effective_to IS NULL OR effective_to > effective_from", name="ck_price_dates_in_order"),
        sa.CheckConstraint(
            "input_nano >= 0 AND cached_input_nano >= 0 AND output_nano >= 0"
            " AND batch_input_nano >= 0 AND batch_output_nano >= 0",
            name="ck_price_not_negative",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_price"),
        sa.UniqueConstraint(
            "model",
            "tenant_id",
            "service_tier",
            "effective_from",
            name="uq_price_model_tenant_id_service_tier_effective_from",
        ),
    )
    op.create_table(
        "discount",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("ppm", BIGINT, nullable=False),
        sa.Column("effective_from", sa.DateTime(timezone=True), nullable=False),
        sa.Column("effective_to", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=64), nullable=False),
        sa.CheckConstraint("effective_to IS NULL OR effective_to > effective_from", name="ck_discount_dates_in_order"),
        sa.CheckConstraint("ppm >= 0 AND ppm <= 1000000", name="ck_discount_at_most_all"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name="fk_discount_tenant_id_tenant", ondelete="RESTRICT"),
        sa.PrimaryKeyConstraint("id", name="pk_discount"),
        sa.UniqueConstraint("tenant_id", "model", "effective_from", name="uq_discount_tenant_id_model_effective_from"),
    )
    op.create_table(
        "limit_rule",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("scope_kind", sa.String(length=16), nullable=False),
        sa.Column("scope_id", sa.String(length=40), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("quota", sa.String(length=32), nullable=False),
        sa.Column("hard", BIGINT, nullable=True),
        sa.Column("soft", BIGINT, nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("hard >= 0 AND soft >= 0", name="ck_limit_rule_not_negative"),
        sa.CheckConstraint("hard IS NOT NULL OR soft IS NOT NULL", name="ck_limit_rule_hard_or_soft"),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenant.id"], name="fk_limit_rule_tenant_id_tenant", ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_limit_rule"),
        sa.UniqueConstraint(
            "scope_kind", "scope_id", "model", "quota", name="uq_limit_rule_scope_kind_scope_id_model_quota"
        ),
    )
    op.create_index("ix_limit_rule_tenant_id", "limit_rule", ["tenant_id"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_limit_rule_tenant_id", table_name="limit_rule")
    op.drop_table("limit_rule")
    op.drop_table("discount")
    op.drop_table("price")
    op.drop_table("gpu_price")

"""Add tenant.max_service_tier and tenant.max_priority: the most its keys may have; what they have stays in force."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

BIGINT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "tenant", sa.Column("max_service_tier", sa.String(length=16), nullable=False, server_default="default")
    )
    op.add_column("tenant", sa.Column("max_priority", BIGINT, nullable=False, server_default="1"))
    op.execute(
        "UPDATE tenant SET max_service_tier = 'priority' WHERE id IN "
        "(SELECT tenant_id FROM api_key WHERE revoked_at IS NULL AND max_service_tier = 'priority')"
    )
    op.execute(
        "UPDATE tenant SET max_priority = 0 WHERE id IN "
        "(SELECT tenant_id FROM api_key WHERE revoked_at IS NULL AND max_priority = 0)"
    )


def downgrade() -> None:
    op.drop_column("tenant", "max_priority")
    op.drop_column("tenant", "max_service_tier")

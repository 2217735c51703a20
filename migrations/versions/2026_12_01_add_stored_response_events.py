"""Add stored_response.events: the frames of a response streamed from the background; null where none was asked for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("stored_response", sa.Column("events", sa.JSON(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("stored_response") as batch:
        batch.drop_column("events")

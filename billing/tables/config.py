"""What an operator changes while the gateway runs and billing does not interpret: routes, aliases, upstreams."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from billing.db import Base


class ConfigItem(Base):
    """One named document of a kind; `version` grows with every change."""

    __tablename__ = "config_item"

    kind: Mapped[str] = mapped_column(sa.String(32), primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(200), primary_key=True)
    body: Mapped[dict[str, Any]]
    version: Mapped[int]
    updated_at: Mapped[datetime]

"""Tokens per minute and per day: prompt plus the output asked for is held, what was not used is given back."""

from __future__ import annotations

from billing.quotas.quota import Quota, Shape, Unit

TPM = Quota(name="tpm", title="tokens per minute", shape=Shape.RATE, unit=Unit.TOKENS, period_s=60)
TPD = Quota(name="tpd", title="tokens per day", shape=Shape.RATE, unit=Unit.TOKENS, period_s=86_400)

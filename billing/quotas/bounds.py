"""Tokens of one request, prompt and output together: checked without Redis."""

from __future__ import annotations

from billing.quotas.quota import Quota, Shape, Unit

MAX_TOKENS = Quota(name="max_tokens_per_request", title="tokens per request", shape=Shape.BOUND, unit=Unit.TOKENS)

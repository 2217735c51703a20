"""Every kind of quota; a new one is a file and a line here."""

from __future__ import annotations

from billing.errors import Invalid
from billing.quotas import bounds, budgets, concurrency, requests, tokens
from billing.quotas.quota import Quota

QUOTAS: dict[str, Quota] = {
    quota.name: quota
    for quota in (
        requests.RPM,
        requests.RPD,
        tokens.TPM,
        tokens.TPD,
        concurrency.CONCURRENCY,
        bounds.MAX_TOKENS,
        budgets.DAY,
        budgets.WEEK,
        budgets.MONTH,
    )
}


def quota_named(name: str) -> Quota:
    """Raises: Invalid for an unknown name."""
    quota = QUOTAS.get(name)
    if quota is None:
        raise Invalid(f"quota: {name[:40]!r} is none of {', '.join(QUOTAS)}", param="quota")
    return quota

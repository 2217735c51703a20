"""Other rooms' errors as OpenAI words them."""

from __future__ import annotations

import pytest

from billing import errors as billing
from gateway.faults import quota_error


def test_a_limit_of_no_requests_is_a_rate_limit_not_a_large_body() -> None:
    refused = quota_error(billing.QuotaDenied("none", scope="tenant", limit="rpm", retry_after_s=None, too_large=True))
    assert (refused.status_code, refused.code) == (429, "rate_limit_exceeded")
    assert refused.response_headers()["x-should-retry"] == "false"


@pytest.mark.parametrize("limit", ["tpm", "tpd", "max_tokens_per_request"])
def test_a_request_beyond_a_token_limit_alone_is_too_large(limit: str) -> None:
    refused = quota_error(billing.QuotaDenied("none", scope="key", limit=limit, retry_after_s=None, too_large=True))
    assert (refused.status_code, refused.code) == (413, "rate_limit_exceeded")
    assert refused.response_headers()["x-weir-limit"] == f"key:{limit}"

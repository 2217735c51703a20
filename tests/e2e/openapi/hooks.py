"""What a client of this server knows and no document can say, for Schemathesis: which models are served, that a test
has no day to wait for 1,000,000 tokens, and that one does not saw off the branch one sits on."""

from __future__ import annotations

import os
from typing import Any

import schemathesis

LEAST = {"max_tokens": 2, "max_completion_tokens": 2, "max_output_tokens": 2, "min_tokens": 2, "n": 2, "best_of": 2}
BOUND = {
    "/v1/chat/completions": "max_completion_tokens",
    "/v1/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
}
OWN = frozenset(os.environ["WEIR_OWN_IDS"].split(","))  # the tenant, project and key that the requests are sent with


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    if case.method not in ("GET", "HEAD", "OPTIONS"):
        for name, value in (case.path_parameters or {}).items():
            if isinstance(value, str) and value in OWN:
                case.path_parameters[name] = "another"
    if isinstance(case.body, dict):
        case.body = _bounded(case.path, case.body)


def _bounded(path: str, body: dict[str, Any]) -> dict[str, Any]:
    body = dict(body)
    model = body.get("model")
    if path.startswith(("/v1/", "/tokenize", "/detokenize")) and isinstance(model, str) and 0 < len(model) <= 256:
        body["model"] = "all-MiniLM-L6-v2" if path == "/v1/embeddings" else "smollm2"
    for name, least in LEAST.items():
        if isinstance(body.get(name), int) and not isinstance(body[name], bool):
            body[name] = min(body[name], least)
    if "input" in body and body["input"] is None and body.get("previous_response_id") is None:
        body["input"] = "hello"  # one of the two is needed, which the schema does not say
    if path.endswith("/tokenize") and body.get("prompt") is None and body.get("messages") is None:
        body["prompt"] = "hello"
    bound = BOUND.get(path)
    if bound and body.get(bound) is None:
        body[bound] = 2
    for name in ("tenant", "scope_id"):  # a limit of zero on oneself
        if isinstance(body.get(name), str) and body[name] in OWN:
            body[name] = "another"
    return body

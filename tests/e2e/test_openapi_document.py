"""Schemathesis reads the served document and asks the real server thousands of valid and invalid questions of it.

No 5xx, no answer that the document does not tell of, no hang; and the engine answers the next plain request. That
valid data is refused is no fault by itself: a schema cannot say how many ids a vocabulary has, or which files there
are. So the share of it that is accepted is held instead, where models are asked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Weir

HOOKS = Path(__file__).parent / "openapi"
DATA_PLANE, ADMIN_PLANE = "^/(?!admin/|v1/organization/)", "^/(admin|v1/organization)/"
ASKED_OF_MODELS = (
    "POST /v1/chat/completions", "POST /v1/completions", "POST /v1/embeddings", "POST /v1/responses",
    "POST /v1/messages", "POST /v1/messages/count_tokens", "POST /tokenize", "POST /detokenize",
)  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weir]:
    """Its own server: administrative requests at random spoil it for others. A short context bounds each answer."""
    server = Weir(tmp_path_factory.mktemp("weir"), "--max-model-len", "256")
    server.start()
    yield server
    assert server.stop() == 0


def fuzz(weir: Weir, paths: str, api_key: str, own: list[str], *, max_examples: int) -> Counter[tuple[str, str, int]]:
    """How many answers had (operation, "positive" or "negative" data, status); fails with Schemathesis' own words."""
    report = weir.folder / "cases.ndjson"
    words = [
        "--config-file", str(HOOKS / "schemathesis.toml"), "run",
        weir.base_url.removesuffix("/v1") + "/openapi/openapi.json",
        "--include-path-regex", paths, "--header", f"Authorization: Bearer {api_key}",
        "--phases", "examples,coverage,fuzzing", "--max-examples", str(max_examples), "--continue-on-failure",
        "--seed", "7", "--generation-database", "none", "--request-timeout", "120", "--no-color", "--warnings", "off",
        "--report", "ndjson", "--report-ndjson-path", str(report),
    ]  # fmt: skip
    done = subprocess.run(
        [str(Path(sys.executable).parent / "schemathesis"), *words],
        cwd=weir.folder,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(HOOKS), "WEIR_OWN_IDS": ",".join(own)},
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return Counter(_answers(report))


def _answers(report: Path) -> Iterator[tuple[str, str, int]]:
    with report.open() as lines:
        for line in lines:
            scenario: dict[str, Any] = json.loads(line).get("ScenarioFinished", {})
            recorder = scenario.get("recorder", {})
            for case_id, case in recorder.get("cases", {}).items():
                answer = recorder["interactions"][case_id]["response"]
                mode = (case["value"].get("meta") or {}).get("generation", {}).get("mode", "")
                yield recorder["label"], mode, answer["status_code"]


def answers_plainly(weir: Weir) -> None:
    answer = weir.client().chat.completions.create(
        model="smollm2", messages=[{"role": "user", "content": "still there?"}], max_tokens=4, temperature=0
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_the_data_plane_is_as_its_document_says(small: Weir) -> None:
    counts = fuzz(small, DATA_PLANE, small.demo["OPENAI_API_KEY"], [], max_examples=15)

    print(f"{counts.total()} requests: {dict(Counter(status for _, _, status in counts.elements()))}")
    for operation in ASKED_OF_MODELS:
        valid = {status: count for (of, mode, status), count in counts.items() if (of, mode) == (operation, "positive")}
        print(f"  {operation}: valid data {valid}")
        assert valid[200] > 0.2 * sum(valid.values()), operation
    assert counts.total() > 2000
    answers_plainly(small)


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_the_admin_plane_is_as_its_document_says(small: Weir) -> None:
    small.cli("tenants", "create", "operator")
    small.cli("projects", "create", "operator", "Office")
    [made] = small.cli_json("keys", "create", "operator", "office", "--role", "operator", "--scope", "admin")

    own = [made["tenant_id"], made["project_id"], made["id"], "operator"]
    counts = fuzz(small, ADMIN_PLANE, made["key"], own, max_examples=10)

    statuses = Counter(status for _, _, status in counts.elements())
    print(f"{counts.total()} requests: {dict(statuses)}")
    assert statuses[200] + statuses[201] + statuses[204] > 0.1 * counts.total()
    assert statuses[403] < 0.1 * counts.total()  # the operator's own key was not lost on the way

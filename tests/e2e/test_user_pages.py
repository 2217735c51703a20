"""The programs on the user's pages run against the real server as they stand there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.docs.pages import blocks
from tests.e2e.conftest import Weir

PAGES = {
    "user/tools_and_schemas.md": "city",
    "user/responses.md": "",
    "user/batches.md": "question-2",
}


@pytest.mark.parametrize("page", PAGES)
def test_every_program_of_the_page_runs(weir: Weir, page: str) -> None:
    program = "\n".join(blocks(page, "python"))
    env = {**os.environ, "OPENAI_BASE_URL": weir.base_url, "OPENAI_API_KEY": weir.demo["OPENAI_API_KEY"]}

    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=200, check=False
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip()
    assert PAGES[page] in done.stdout

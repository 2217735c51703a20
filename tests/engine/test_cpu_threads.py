from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("chosen", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_sleep_while_they_wait_unless_told_otherwise(chosen: str | None, expected: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    if chosen:
        environment["OMP_WAIT_POLICY"] = chosen
    code = "import engine.loader, os, sys; print(os.environ['OMP_WAIT_POLICY'])"
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert result.stdout.strip() == expected

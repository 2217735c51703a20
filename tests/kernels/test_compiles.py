"""Every kernel compiles for Hopper, fits its shared memory and waits for its predecessor, shown without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels._triton import HAS_TRITON

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, int | str]]:
    if not HAS_TRITON:
        pytest.skip("triton is not installed")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")),
        "TRITON_INTERPRET": "0",
    }
    script = Path(__file__).with_name("hopper_compile.py")
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.heavy
def test_every_kernel_fits_shared_memory(compiled):
    assert {row["kernel"] for row in compiled if row["shared"] > 232448} == set()


@pytest.mark.heavy
def test_every_kernel_waits_for_its_predecessor(compiled):
    # A kernel that did not would let its successor start before what came before it has ended.
    assert {row["kernel"] for row in compiled if row["waits_itself"] == 0} == set()


@pytest.mark.heavy
def test_products_and_prefill_use_the_tensor_cores_of_hopper(compiled):
    for name in ("_few_row_kernel", "_prefill_kernel"):
        assert any(row["wgmma"] > 0 for row in compiled if row["kernel"] == name)


@pytest.mark.heavy
def test_every_kernel_of_the_package_is_among_them(compiled):
    launched = {row["kernel"] for row in compiled}
    defined = set()
    for path in (ROOT / "kernels").glob("*.py"):
        defined |= {line[4:].split("(")[0] for line in path.read_text().splitlines() if line.startswith("def _")}
    kernels = {name for name in defined if name.endswith("_kernel")}
    assert kernels - launched == set()

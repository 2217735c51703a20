"""Runs everything that must hold on a GPU and records it; `--check` says whether that still covers the code.

    make gpu-test        python -m benchmarks.gpu_tests
    make release-check   python -m benchmarks.gpu_tests --check

Needs pytest alone beside what the engine needs: the project's pytest settings, which ask for plugins, stay out.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

from benchmarks import results_file

ROOT = results_file.ROOT
RESULTS = results_file.FOLDER / "gpu_tests.csv"
COLUMNS = ("date", "commit", "source_sha256", "gpu", "torch", "triton", "passed", "failed", "skipped", "seconds")
TESTS = ("tests/kernels", "tests/engine/test_gpu.py", "tests/engine/test_cuda_runner.py")
# What the run vouches for: the kernels, and the runner with all that it runs on a GPU.
SOURCES = (
    "kernels/*.py", "engine/model_runner.py", "engine/cuda_*.py", "engine/*_graphs.py", "engine/shared_prefix.py",
    "engine/staging.py", "engine/batch.py", "engine/attention.py", "engine/layers/few_rows.py",
)  # fmt: skip


def source_sha256() -> str:
    digest = hashlib.sha256()
    for path in sorted(path for pattern in SOURCES for path in ROOT.glob(pattern)):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def run(commit: str) -> int:
    import torch

    if not torch.cuda.is_available():
        print("gpu-test needs a CUDA device; torch sees none")
        return 2
    import triton

    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder) / "junit.xml"
        options = ["-c", os.devnull, f"--rootdir={ROOT}", "-o", f"pythonpath={ROOT}", "--import-mode=importlib", "-q"]
        options += ["-o", "markers=gpu: needs a CUDA device", "-p", "no:cacheprovider", f"--junitxml={xml}"]
        code = subprocess.run([sys.executable, "-m", "pytest", *options, *TESTS], cwd=ROOT, check=False).returncode
        suite = next(ET.parse(xml).getroot().iter("testsuite")).attrib
    failed = int(suite["failures"]) + int(suite["errors"])
    passed = int(suite["tests"]) - failed - int(suite["skipped"])
    row = {
        "commit": commit or results_file.commit(), "source_sha256": source_sha256(),
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "passed": passed, "failed": failed, "skipped": suite["skipped"], "seconds": f"{float(suite['time']):.0f}",
    }  # fmt: skip
    results_file.append(RESULTS, COLUMNS, [row])
    return code


def check() -> int:
    if not RESULTS.exists():
        print(f"release-check: {RESULTS.relative_to(ROOT)} does not exist: run make gpu-test on a GPU")
        return 1
    with RESULTS.open(newline="") as file:
        last = list(csv.DictReader(file))[-1]
    where = f"the last GPU run ({last['date']}, {last['commit']}, {last['gpu']})"
    if last["failed"] != "0" or last["passed"] == "0":
        print(f"release-check: {where} failed {last['failed']} of its tests and passed {last['passed']}")
        return 1
    if last["source_sha256"] != source_sha256():
        print(f"release-check: kernels/ or the runner changed since {where}: run make gpu-test on a GPU")
        return 1
    print(f"release-check: {where} covers the code as it is")
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the last run with the code")
    parser.add_argument("--commit", default="", help="recorded instead of git's HEAD")
    args = parser.parse_args()
    sys.exit(check() if args.check else run(args.commit))


if __name__ == "__main__":
    main()

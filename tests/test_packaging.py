"""What is shipped: every package from this repository, a wheel without tests that migrates an empty folder."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OUR_PACKAGES = ("gateway", "engine", "kernels", "cache", "billing", "migrations")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)],
        check=True,
        capture_output=True,
    )
    return next(out.glob("tokenweir-*.whl"))


@pytest.mark.parametrize("name", OUR_PACKAGES)
def test_package_is_imported_from_this_repository(name: str) -> None:
    # `kernels` is also a package of Hugging Face's that transformers probes for: ours must be the one that is found.
    module = importlib.import_module(name)
    assert module.__file__ is not None
    assert Path(module.__file__).resolve().is_relative_to(ROOT)


def test_kernels_package_offers_nothing_but_its_version() -> None:
    import ast

    tree = ast.parse((ROOT / "kernels" / "__init__.py").read_text())
    docstring, version = tree.body
    assert isinstance(docstring, ast.Expr)
    assert ast.unparse(version) == "__version__ = '0.0.0'"


def test_wheel_holds_every_package_file_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    listed = subprocess.run(
        ["git", "ls-files", *OUR_PACKAGES], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    assert set(listed) <= names  # Lua scripts, templates and migrations travel too
    tops = {name.split("/")[0] for name in names}
    assert tops - {name for name in tops if name.endswith(".dist-info")} == set(OUR_PACKAGES)
    assert not [name for name in names if "test" in Path(name).stem]


def test_wheel_migrates_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    # given the wheel's own files, away from the checkout
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    empty = tmp_path / "empty"
    empty.mkdir()
    env = {**os.environ, "PYTHONPATH": str(site)}
    # when a newcomer migrates twice
    runs = [
        subprocess.run(
            [sys.executable, "-m", "gateway", "migrate"], cwd=empty, env=env, check=True, capture_output=True, text=True
        )
        for _ in range(2)
    ]
    # then the schema is there, and the second run has nothing to do
    assert (empty / "var" / "weir.db").stat().st_size > 0
    assert "nothing to do" not in runs[0].stdout
    assert "nothing to do" in runs[1].stdout
    where = subprocess.run(
        [sys.executable, "-c", "import billing; print(billing.__file__)"],
        cwd=empty,
        env=env,
        check=True,
        capture_output=True,
        text=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(site)


@pytest.mark.heavy
def test_the_same_lock_gives_a_cuda_torch_on_a_gpu_host(tmp_path: Path) -> None:
    # Without this host's own wheel folders pip takes the index's build, as a GPU host does. Nothing is installed.
    # fmt: off
    command = [
        sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet",
        "--python-version", "3.12", "--only-binary=:all:", "--target", str(tmp_path / "site"),
        "--report", str(tmp_path / "report.json"), "-r", str(ROOT / "requirements.lock"),
    ]
    # fmt: on
    env = {name: value for name, value in os.environ.items() if not name.startswith("PIP_") or name == "PIP_CERT"}
    subprocess.run(command, check=True, env={**env, "PIP_CONFIG_FILE": os.devnull}, capture_output=True)
    import json

    report = json.loads((tmp_path / "report.json").read_text())
    versions = {item["metadata"]["name"].lower(): item["metadata"]["version"] for item in report["install"]}
    assert versions["torch"].startswith("2.13.0")
    assert "cpu" not in versions["torch"]
    assert "nvidia-cublas" in versions
    assert "triton" in versions

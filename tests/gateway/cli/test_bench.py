"""`weir bench` from the command line, on a tiny model with random weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import root

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 2048,
    "eos_token_id": 299,
    "torch_dtype": "float32",
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    return str(tmp_path)


def _run(model: str, *arguments: str) -> list[dict[str, object]]:
    common = ["--model", model, "--load-format", "dummy", "--device", "cpu", "--num-threads", "1", "--json"]
    result = CliRunner().invoke(root, ["bench", *arguments, *common])
    assert result.exit_code == 0, result.output
    rows: list[dict[str, object]] = json.loads(result.stdout)
    return rows


def test_a_workload_prints_its_figures(model: str) -> None:
    (row,) = _run(model, "seed_mix", "--limit", "2", "--runs", "1", "--max-num-seqs", "4")
    assert row["workload"] == "seed_mix"
    assert row["requests"] == 2
    assert float(str(row["out_tok_s"])) > 0


def test_a_sweep_prints_a_row_a_size_and_one_knee(model: str) -> None:
    rows = _run(model, "sweep", "--max-num-seqs", "1,2", "--limit", "2")
    assert [row["max_num_seqs"] for row in rows] == [1, 2]
    assert [row["knee"] for row in rows].count("knee") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "unknown workload 'nothing', known are single"),
        (["sweep"], "a sweep needs --max-num-seqs with a list"),
        (["sweep", "--max-num-seqs", "many"], "got 'many'"),
        (["seed_mix", "--model", "/nowhere"], "/nowhere"),
    ],
)
def test_a_mistake_is_named(model: str, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(root, ["bench", "--model", model, "--load-format", "dummy", *arguments])
    assert result.exit_code != 0
    assert message in result.output

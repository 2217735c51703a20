"""Several models side by side in one gateway, each with an engine of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import EngineConfig
from gateway.engines import Served
from gateway.settings import SettingsError, load_settings
from tests.gateway.conftest import Gateway, StartGateway, until
from tests.gateway.fakes import Script, ScriptedEngine, text_model


async def _two(start_gateway: StartGateway) -> tuple[Gateway, ScriptedEngine, ScriptedEngine]:
    first = ScriptedEngine()
    second = ScriptedEngine(Script(steps=("other", " words")), name="second")
    further = (Served(EngineConfig(model="second"), second, text_model("second")),)
    gateway = await start_gateway(first, further=further)
    await gateway.set_price("second")
    return gateway, first, second


async def test_each_model_is_answered_by_its_own_engine_and_billed_by_its_name(start_gateway: StartGateway) -> None:
    gateway, first, second = await _two(start_gateway)
    answers = [(await gateway.chat("hi", model=name)).json() for name in ("m", "second")]
    assert [a["choices"][0]["message"]["content"] for a in answers] == ["Hello world", "other words"]
    assert [len(engine.requests) for engine in (first, second)] == [1, 1]
    assert [row.model for row in await gateway.ledger()] == ["m", "second"]
    listed = await gateway.client.get("/v1/models", headers=gateway.tenant.headers)
    assert {"m", "second"} <= {model["id"] for model in listed.json()["data"]}


async def test_the_worst_engine_is_the_gateways_health(start_gateway: StartGateway) -> None:
    gateway, _, second = await _two(start_gateway)
    client = gateway.client
    assert (await client.get("/health")).status_code == 200
    second.status = "hung"
    answer = await client.get("/health")
    assert answer.status_code == 503
    assert "hung" in answer.text


async def test_metrics_tell_the_models_apart_in_one_family(start_gateway: StartGateway) -> None:
    gateway, _, _ = await _two(start_gateway)
    probe = gateway.parts.probe
    await until(lambda: len(probe.last_stats) == 2)
    text = (await gateway.client.get("/metrics")).text
    assert text.count("# TYPE vllm:num_requests_running gauge") == 1
    for name in ("m", "second"):
        assert f'vllm:num_requests_running{{model_name="{name}"}}' in text


def test_models_come_as_tables_or_json(tmp_path: Path) -> None:
    toml = tmp_path / "weir.toml"
    toml.write_text(
        'model = "a"\ngpu-memory-utilization = 0.5\n'
        '[[models]]\nmodel = "b"\ngpu-memory-utilization = 0.3\nmax-num-seqs = 4\n'
    )
    settings = load_settings(toml_path=toml, env={})
    assert settings.models == (EngineConfig(model="b", gpu_memory_utilization=0.3, max_num_seqs=4),)
    json = '[{"model": "c", "gpu_memory_utilization": 0.5}]'
    settings = load_settings(toml_path=toml, env={"WEIR_MODELS": json})
    assert [config.name for config in settings.models] == ["c"]


@pytest.mark.parametrize(
    ("models", "fault"),
    [
        ('[{"model": "b", "gpu_memory_utilization": 0.6}]', "all engines sums to 1.10, at most 1 fits: a 0.5, b 0.6"),
        ('[{"model": "a", "gpu_memory_utilization": 0.1}]', "taken twice: a"),
        ('[{"model": "b", "max_num_seq": 3}]', "did you mean 'max_num_seqs'"),
        ('{"model": "b"}', "models = "),
        ("b", "models = "),
    ],
)
def test_engines_that_do_not_fit_beside_each_other_are_refused(models: str, fault: str) -> None:
    env = {"WEIR_MODEL": "a", "WEIR_GPU_MEMORY_UTILIZATION": "0.5", "WEIR_MODELS": models}
    with pytest.raises(SettingsError, match=fault):
        load_settings(env=env)

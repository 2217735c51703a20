"""`EngineConfig`: vLLM's names, frozen, every unknown name refused at once."""

from __future__ import annotations

import pytest

from engine.config import DEPRECATED, ConfigError, EngineConfig


def test_flags_read_as_vllm_spells_them() -> None:
    config = EngineConfig.from_mapping(
        {
            "model": "m",
            "--max-model-len": 4096,
            "gpu-memory-utilization": 0.95,
            "max_num_seqs": 64,
            "enable_chunked_prefill": True,
            "served_model_name": "name",
            "num_gpu_blocks_override": None,
            "swap_space": 4,
        }
    )
    assert (config.max_model_len, config.gpu_memory_utilization, config.max_num_seqs) == (4096, 0.95, 64)
    assert config.served_model_name == ("name",)
    assert config.swap_space == 4.0


def test_every_unknown_name_is_told_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError) as refused:
        EngineConfig.from_mapping({"model": "m", "max_num_seq": 1, "block_sise": 16})
    assert "'max_num_seq', did you mean 'max_num_seqs'" in str(refused.value)
    assert "'block_sise', did you mean 'block_size'" in str(refused.value)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("block_size", 12),
        ("gpu_memory_utilization", 0.0),
        ("gpu_memory_utilization", 1.2),
        ("dtype", "float8"),
        ("kv_cache_dtype", "int3"),
        ("max_model_len", 1),
        ("num_gpu_blocks_override", 1),
        ("tensor_parallel_size", 2),
        ("stream_interval", 0),
        ("max_num_seqs", "many"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(setting: str, value: object) -> None:
    with pytest.raises(ConfigError, match=setting):
        EngineConfig.from_mapping({"model": "m", setting: value})


@pytest.mark.parametrize("name", sorted(DEPRECATED))
def test_a_flag_that_means_nothing_any_more_warns(name: str) -> None:
    with pytest.warns(FutureWarning, match=name):
        EngineConfig.from_mapping({"model": "m", name: True})


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        EngineConfig(model="m").max_num_seqs = 3  # type: ignore[misc]


def test_the_memory_shares_of_several_engines_must_fit_one_device() -> None:
    def share(value: float, device: str = "cuda") -> EngineConfig:
        return EngineConfig.from_mapping({"model": "m", "gpu_memory_utilization": value, "device": device})

    EngineConfig.check_shares({"a": share(0.6), "b": share(0.4)})
    EngineConfig.check_shares({"a": share(0.9), "b": share(0.9, "cpu")})
    with pytest.raises(ConfigError, match=r"sums to 1.10, at most 1 fits: a 0.6, b 0.5"):
        EngineConfig.check_shares({"a": share(0.6), "b": share(0.5)})

"""Settings: three sources, one order, every fault at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.settings import SettingsError, all_settings, load_settings


def test_flag_wins_over_variable_wins_over_file(tmp_path: Path) -> None:
    toml = tmp_path / "weir.toml"
    toml.write_text('port = 1\nhost = "a"\nmax-num-seqs = 8\n')
    settings = load_settings(toml_path=toml, env={"WEIR_PORT": "2", "WEIR_HOST": "b"}, flags={"port": "3"})
    assert (settings.port, settings.host, settings.engine.max_num_seqs) == (3, "b", 8)


def test_every_fault_is_reported_at_once_with_its_source(tmp_path: Path) -> None:
    toml = tmp_path / "weir.toml"
    toml.write_text("prot = 8000\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(toml_path=toml, env={"WEIR_BLOCK_SIZE": "x", "WEIR_REPLICAS": "0"}, flags={"engine_mode": "both"})
    text = "\n".join(caught.value.faults)
    assert len(caught.value.faults) == 4
    assert "unknown setting 'prot'" in text
    assert "did you mean 'port'?" in text
    assert "the variable WEIR_BLOCK_SIZE" in text
    assert ">= 1" in text
    assert "--engine-mode" in text


def test_missing_named_file_and_broken_toml_are_faults(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        load_settings(toml_path=tmp_path / "absent.toml", env={})
    broken = tmp_path / "weir.toml"
    broken.write_text("port = ")
    with pytest.raises(SettingsError, match="not valid TOML"):
        load_settings(toml_path=broken, env={})


def test_lists_come_from_commas_and_lengths_from_words() -> None:
    settings = load_settings(env={"WEIR_SERVED_MODEL_NAME": "a, b", "WEIR_MAX_MODEL_LEN": "2048"})
    assert settings.engine.served_model_name == ("a", "b")
    assert settings.engine.max_model_len == 2048
    assert load_settings(env={"WEIR_MAX_MODEL_LEN": "auto"}).engine.max_model_len == "auto"


def test_certificate_without_key_is_refused() -> None:
    with pytest.raises(SettingsError, match="must be given together"):
        load_settings(env={"WEIR_SSL_CERTFILE": "/dev/null"})


def test_every_setting_is_described() -> None:
    undocumented = [info.name for info in all_settings().values() if len(info.description) < 10]
    assert undocumented == []

"""`weir doctor` names what is wrong and what to do, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import redis as sync_redis

from billing import db
from gateway.doctor import Finding, Level, check_database, check_redis, check_secret, examine
from gateway.embedded_redis import EmbeddedRedis
from gateway.settings import Settings, load_settings


def _settings(tmp_path: Path, **changes: object) -> Settings:
    settings = load_settings(env={}, flags={"data_dir": str(tmp_path / "var"), "model": "none"})
    return msgspec.structs.replace(settings, **changes)


async def _by_subject(check: object, settings: Settings) -> dict[str, Finding]:
    return {finding.about: finding async for finding in check(settings)}  # type: ignore[operator]


async def test_empty_folder_is_fine_and_stays_empty(tmp_path: Path) -> None:
    findings = await examine(_settings(tmp_path))
    assert [f for f in findings if f.level is Level.FAIL] == []
    assert not (tmp_path / "var").exists()


async def test_secret_that_others_may_read_is_a_failure_without_its_content(tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    settings.data_path.mkdir()
    settings.effective_secret_file.write_text("1:" + "ab" * 32)
    settings.effective_secret_file.chmod(0o644)
    found = (await _by_subject(check_secret, settings))["server secret"]
    assert found.level is Level.FAIL
    assert found.remedy.startswith("chmod 600")
    assert "abab" not in found.detail + found.remedy


async def test_redis_that_would_evict_is_a_failure(tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    with EmbeddedRedis(settings.data_path) as server:
        found = await _by_subject(check_redis, settings)
        assert {f.level for f in found.values()} <= {Level.OK, Level.WARN}
        with sync_redis.Redis.from_url(server.url) as client:
            client.config_set("maxmemory", "100mb")
            client.config_set("maxmemory-policy", "allkeys-lru")
        found = await _by_subject(check_redis, settings)
    assert found["redis eviction"].level is Level.FAIL
    assert "allkeys-lru" in found["redis eviction"].detail


async def test_database_behind_this_version_is_told_with_the_command(tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    settings.data_path.mkdir()
    await db.upgrade(settings.effective_database_url, "0001")
    found = await _by_subject(check_database, settings)
    assert found["schema"].level is Level.WARN
    assert found["schema"].remedy == "weir migrate"
    await db.upgrade(settings.effective_database_url)
    found = await _by_subject(check_database, settings)
    assert found["schema"].level is Level.OK
    assert found["durability"].level is Level.OK


async def test_unreachable_redis_is_a_finding_not_a_crash(tmp_path: Path) -> None:
    findings = await examine(_settings(tmp_path, redis_url=f"unix://{tmp_path}/absent.sock"))
    assert [f.about for f in findings if f.level is Level.FAIL] == ["redis"]

"""Process settings: addresses, sizes, paths. From `weir.toml`, then `WEIR_*` variables, then flags; the later one wins.

What an operator changes while Weir runs (tenants, keys, limits, prices, routes) is not here: it lives in SQL.
Unknown names are refused, and every fault is reported at once. The engine's own settings keep vLLM's flag names and
stand beside these in the same file; `engine.config` defines them.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from cache.policy import read_hit_price
from engine.config import ConfigError, EngineConfig

ENV_PREFIX = "WEIR_"
NO_ENGINE = "none"  # the model of a gateway to upstreams only
TOML_NAME = "weir.toml"


class SettingsError(ValueError):
    """One or more settings are wrong; `faults` lists every one, each naming the setting, its value and its source."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


def _about(text: str, **bounds: Any) -> Meta:
    return Meta(description=text, **bounds)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a Weir process is told at start. Each field's `Meta.description` is its documentation."""

    host: Annotated[str, _about("address the data plane listens on")] = "127.0.0.1"
    port: Annotated[int, _about("port the data plane listens on; 0 takes a free one", ge=0, le=65535)] = 8000
    admin_port: Annotated[
        int, _about("port for /admin/v1 and /v1/organization on its own; 0 serves them with the data plane", ge=0)
    ] = 0
    metrics_port: Annotated[int, _about("port for /metrics on its own; 0 serves it with the data plane", ge=0)] = 0
    root_path: Annotated[str, _about("path prefix a reverse proxy strips")] = ""
    proxy_headers: Annotated[bool, _about("trust X-Forwarded-* from forwarded_allow_ips")] = False
    forwarded_allow_ips: Annotated[str, _about("comma-separated proxy addresses to trust")] = "127.0.0.1"
    ssl_certfile: Annotated[str, _about("TLS certificate (PEM); empty: plain HTTP")] = ""
    ssl_keyfile: Annotated[str, _about("TLS private key (PEM)")] = ""
    cors_allow_origins: Annotated[
        tuple[str, ...], _about("origins allowed to call from browsers; '*' allows all, empty turns CORS off")
    ] = ()
    webhook_private_hosts: Annotated[
        bool, _about("let alert webhooks reach private and loopback addresses; tenants' admins name them")
    ] = False
    data_dir: Annotated[str, _about("folder for everything a run writes")] = "var"
    database_url: Annotated[
        str, _about("SQLAlchemy URL (sqlite+aiosqlite or postgresql+asyncpg); empty: SQLite in data_dir")
    ] = ""
    redis_url: Annotated[
        str,
        _about("Redis or Valkey >= 6.2 for limits, and for the cache unless cache_redis_url is set; empty: embedded"),
    ] = ""
    cache_redis_url: Annotated[str, _about("Redis for cached answers; empty: the limits' Redis")] = ""
    redis_deadline_ms: Annotated[
        int, _about("one deadline for all Redis work of a request, milliseconds", ge=1, le=10_000)
    ] = 100
    replicas: Annotated[
        int,
        _about(
            "gateways on one Redis: each allows limit / replicas while Redis is away; from 2 on, identical questions "
            "at once make one generation among them all",
            ge=1,
        ),
    ] = 1
    server_secret_file: Annotated[
        str, _about("file with the versioned server secret, shared by all gateways; empty: data_dir/server_secret.json")
    ] = ""
    engine_mode: Annotated[
        Literal["auto", "inline", "child"],
        _about("inline: the engine is a thread of this process; child: a supervised process; auto: child on a GPU"),
    ] = "auto"
    max_body_bytes: Annotated[int, _about("largest request body, bytes", ge=1024)] = 32 * 1024 * 1024
    request_timeout_s: Annotated[float, _about("longest life of one inference request, seconds", gt=0)] = 600.0
    drain_timeout_s: Annotated[float, _about("seconds SIGTERM waits for running requests", ge=0)] = 30.0
    strict_fields: Annotated[bool, _about("refuse unknown request fields with 400 instead of warning")] = False
    allow_request_chat_template: Annotated[bool, _about("let requests bring their own chat_template")] = False
    tool_format: Annotated[
        Literal["", "hermes", "qwen_xml", "llama3", "mistral", "mistral_args", "gemma4", "functiongemma"],
        _about("how models write tool calls; empty: read off each model's chat template"),
    ] = ""
    store_responses: Annotated[
        bool, _about("keep answers of /v1/responses where a request does not say store, as OpenAI does")
    ] = True
    responses_retention_s: Annotated[float, _about("seconds a kept response lives", gt=0)] = 30 * 86_400.0
    files_retention_s: Annotated[float, _about("seconds a file of /v1/files lives", gt=0)] = 30 * 86_400.0
    files_max_tenant_bytes: Annotated[int, _about("bytes all files of one tenant may have", ge=0)] = 4 << 30
    batch_concurrency: Annotated[int, _about("lines of a batch asked at a time", ge=1, le=1024)] = 16
    cache_enabled: Annotated[bool, _about("answer from the exact cache")] = True
    semantic_cache_enabled: Annotated[bool, _about("answer from the semantic cache too")] = True
    cache_threshold: Annotated[
        float, _about("least cosine similarity of a semantic hit; requests can only be stricter", ge=0.5, le=1.0)
    ] = 0.95
    cache_ttl_s: Annotated[int, _about("seconds a cached answer lives; never renewed by a hit", ge=1)] = 86_400
    cache_hit_price: Annotated[
        str, _about("what an answer served again is charged: free, full or a share of its price such as 25%")
    ] = "free"
    cache_reap_interval_s: Annotated[
        float, _about("seconds between two rounds that remove expired answers from the cache's accounts", ge=1)
    ] = 600.0
    cache_shadow_share: Annotated[
        float,
        _about("share of semantic hits generated again to estimate how many are wrong; not charged", ge=0, le=1),
    ] = 0.0
    cache_index: Annotated[
        Literal["flat", "redisearch"],
        _about("where near questions are searched: in this process, or in the cache's Redis by RediSearch"),
    ] = "flat"
    cross_encoder: Annotated[
        str,
        _about("folder of a sentence-transformers cross-encoder that judges uncertain semantic hits; empty: none"),
    ] = ""
    cross_encoder_below: Annotated[
        float, _about("cosine below which a semantic hit must pass the cross-encoder, where there is one", ge=0, le=1)
    ] = 0.97
    cross_encoder_threshold: Annotated[
        float, _about("least probability of the cross-encoder that two questions want the same answer", ge=0, le=1)
    ] = 0.5
    cross_encoder_timeout_s: Annotated[
        float, _about("seconds the cross-encoder may take; a later verdict is a miss", gt=0, le=60)
    ] = 0.5
    embedder: Annotated[
        str, _about("sentence-transformers folder for the semantic cache and /v1/embeddings; empty: the packaged one")
    ] = ""
    embedder_mode: Annotated[
        Literal["auto", "thread", "process"], _about("where the embedder runs; auto: a process when the engine is one")
    ] = "auto"
    gpu_hour_usd: Annotated[str, _about("what one GPU hour costs, US dollars, for cost beside price")] = "0"
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _about("least level logged")] = "info"
    log_format: Annotated[Literal["text", "json"], _about("one line of text or one JSON object a record")] = "text"
    models: Annotated[
        tuple[EngineConfig, ...],
        _about(
            "further models, each with an engine of its own: [[models]] tables of weir.toml, or JSON, with the "
            "engine's setting names; all engines' gpu_memory_utilization together at most 1"
        ),
    ] = ()
    engine: Annotated[EngineConfig, _about("the engine's settings, by their own names")] = EngineConfig()

    @property
    def data_path(self) -> Path:
        return Path(self.data_dir)

    @property
    def effective_database_url(self) -> str:
        return self.database_url or f"sqlite+aiosqlite:///{self.data_path.absolute() / 'weir.db'}"

    @property
    def embedding_model_name(self) -> str:
        """What callers name the embedder: its folder's name, or the packaged model's."""
        return Path(self.embedder).name if self.embedder else "all-MiniLM-L6-v2"

    @property
    def effective_secret_file(self) -> Path:
        return Path(self.server_secret_file) if self.server_secret_file else self.data_path / "server_secret.json"


class SettingInfo(msgspec.Struct, frozen=True):
    """One setting as flags, help and documentation need it."""

    name: str
    type: Any
    default: Any
    description: str
    of_engine: bool

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()


def _fields(struct: type[msgspec.Struct], *, of_engine: bool) -> Iterable[SettingInfo]:
    hints = get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        if field.name == "engine" and not of_engine:
            continue
        hint = hints[field.name]
        metas = [arg for arg in get_args(hint)[1:] if isinstance(arg, Meta)] if get_origin(hint) is Annotated else []
        description = next((meta.description for meta in metas if meta.description), "")
        yield SettingInfo(field.name, hint, field.default, description, of_engine)


def all_settings() -> dict[str, SettingInfo]:
    """Every known setting by its underscore name, Weir's own first."""
    infos = [*_fields(Settings, of_engine=False), *_fields(EngineConfig, of_engine=True)]
    return {info.name: info for info in infos}


def load_settings(
    *,
    toml_path: Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Reads, merges and checks the three sources.

    Args: toml_path None reads `weir.toml` in the working folder if there is one; a path that does not exist is a
    fault. env defaults to the process's. flags whose value is None count as not given.
    Raises: SettingsError with every fault.
    """
    known = all_settings()
    faults: list[str] = []
    chosen: dict[str, tuple[Any, str]] = {}
    for name, value, source in _gather(toml_path, os.environ if env is None else env, flags or {}, faults):
        if name not in known:
            faults.append(f"unknown setting {name!r} in {source}{_suggest(name, known)}")
            continue
        chosen[name] = (value, source)
    own: dict[str, Any] = {}
    engine: dict[str, Any] = {}
    for name, (value, source) in chosen.items():
        info = known[name]
        try:
            converted = _convert(value, info.type)
        except (msgspec.MsgspecError, ConfigError) as exc:
            faults.append(f"{name} = {value!r} in {source}: {exc}")
            continue
        (engine if info.of_engine else own)[name] = converted
    faults.extend(_cross_checks(own))
    try:
        engine_config = EngineConfig(**engine)
        _check_engines(engine_config, own.get("models", ()))
    except ConfigError as exc:
        faults.append(str(exc))
    if faults:
        raise SettingsError(faults)
    return Settings(**own, engine=engine_config)


def _gather(
    toml_path: Path | None, env: Mapping[str, str], flags: Mapping[str, Any], faults: list[str]
) -> Iterable[tuple[str, Any, str]]:
    path = toml_path or Path(TOML_NAME)
    if path.is_file():
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
            faults.append(f"{path} is not valid TOML: {exc}")
            document = {}
        for name, value in document.items():
            yield name.replace("-", "_"), value, str(path)
    elif toml_path is not None:
        faults.append(f"the settings file {toml_path} does not exist")
    for name, value in sorted(env.items()):
        if name.startswith(ENV_PREFIX):
            yield name[len(ENV_PREFIX) :].lower(), value, f"the variable {name}"
    for name, value in flags.items():
        if value is not None:
            yield name.replace("-", "_"), value, f"the flag --{name.replace('_', '-')}"


def _convert(value: Any, hint: Any) -> Any:
    if bare_type(hint) == tuple[EngineConfig, ...]:
        items = msgspec.json.decode(value or "[]", type=list[dict[str, Any]]) if isinstance(value, str) else value
        return tuple(EngineConfig.from_mapping(item) for item in msgspec.convert(items, list[dict[str, Any]]))
    if isinstance(value, str) and get_origin(bare_type(hint)) is tuple:
        value = tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, dict) and bare_type(hint) is str:
        value = msgspec.json.encode(value).decode()  # a table of weir.toml where a flag takes JSON
    return msgspec.convert(value, hint, strict=not isinstance(value, str))


def _check_engines(first: EngineConfig, further: Sequence[EngineConfig]) -> None:
    """Raises: ConfigError where several engines do not fit one device, or two serve the same name."""
    configs = [first, *further] if first.model != NO_ENGINE else list(further)
    if len(configs) < 2:
        return
    names = [name for config in configs for name in config.served_names]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{len(configs)} engines must serve different names, taken twice: {', '.join(twice)}")
    EngineConfig.check_shares({config.name: config for config in configs})


def _cross_checks(own: Mapping[str, Any]) -> Iterable[str]:
    try:
        read_hit_price(own.get("cache_hit_price", "free"))
    except ValueError as exc:
        yield f"cache_hit_price: {str(exc).removeprefix('hit_price: ')}"
    cert, key = own.get("ssl_certfile", ""), own.get("ssl_keyfile", "")
    if bool(cert) != bool(key):
        yield "ssl_certfile and ssl_keyfile must be given together"
    for name in ("ssl_certfile", "ssl_keyfile"):
        if own.get(name) and not Path(own[name]).is_file():
            yield f"{name} = {own[name]!r}: no such file"
    ports = [(name, own[name]) for name in ("port", "admin_port", "metrics_port") if own.get(name)]
    for number, (name, port) in enumerate(ports):
        if port in [taken for _, taken in ports[:number]]:
            yield f"{name} = {port}: another listener has that port; planes listen apart or, with 0, together"


def _suggest(name: str, known: Iterable[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def bare_type(hint: Any) -> Any:
    """The type under an `Annotated`."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def describe_type(hint: Any) -> str:
    """A type in words for help and the reference page: `integer`, `list`, `auto|inline|child`, …"""
    bare = bare_type(hint)
    names = {int: "integer", float: "number", bool: "switch", str: "text"}
    if bare in names:
        return names[bare]
    if get_origin(bare) is tuple:
        return "list"
    if get_origin(bare) is Literal:
        return "|".join(map(str, get_args(bare)))
    return "|".join(describe_type(part) for part in get_args(bare))

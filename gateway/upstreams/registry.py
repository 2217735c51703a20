"""Kinds of upstreams that an operator can configure; a new kind is a file beside this one and a line in KINDS."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import aiohttp
import msgspec
from msgspec import Meta

from billing.errors import Invalid
from billing.secrets import ServerSecret
from gateway.upstreams.base import Upstream
from gateway.upstreams.openai import OpenAIUpstream, OpenAIUpstreamSpec

ModelName = Annotated[str, Meta(min_length=1, max_length=200)]


class UpstreamSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One server and the models it serves.

    `models` maps a name in our price list to the server's own name for it ("" is the same). Its key is either in the
    variable `api_key_env` of every gateway's environment, or `api_key_encrypted` under the server secret.
    """

    base_url: Annotated[str, Meta(min_length=8, max_length=500, pattern=r"^https?://[^\s?#]+$")]
    models: Annotated[dict[ModelName, Annotated[str, Meta(max_length=200)]], Meta(min_length=1, max_length=500)]
    kind: Literal["openai"] = "openai"
    api_key_env: Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")] | None = None
    api_key_encrypted: str | None = None
    connect_timeout_s: Annotated[float, Meta(gt=0, le=60)] = 5.0
    first_token_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 120.0
    idle_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 60.0


class Surroundings(msgspec.Struct, frozen=True):
    """What upstreams share: HTTP connections, the server secret, a rough token counter."""

    session: aiohttp.ClientSession
    secret: ServerSecret
    count_tokens: Callable[[str], int]


def build(name: str, spec: UpstreamSpec, around: Surroundings) -> list[Upstream]:
    """One upstream a model. Raises: Invalid when the key cannot be opened."""
    return KINDS[spec.kind](name, spec, around)


def _openai(name: str, spec: UpstreamSpec, around: Surroundings) -> list[Upstream]:
    key = _key_of(name, spec, around.secret)
    return [
        OpenAIUpstream(
            OpenAIUpstreamSpec(
                name=name,
                model=model,
                base_url=spec.base_url,
                remote_model=remote,
                connect_timeout_s=spec.connect_timeout_s,
                first_token_timeout_s=spec.first_token_timeout_s,
                idle_timeout_s=spec.idle_timeout_s,
            ),
            around.session,
            key,
            around.count_tokens,
        )
        for model, remote in spec.models.items()
    ]


def _key_of(name: str, spec: UpstreamSpec, secret: ServerSecret) -> Callable[[], str | None]:
    """Asked at every call: a variable may be rotated by restarting one gateway after the other."""
    if spec.api_key_env is not None and spec.api_key_encrypted is not None:
        raise Invalid(f"upstream {name!r}: api_key_env and api_key exclude each other", param="api_key")
    if spec.api_key_encrypted is not None:
        opened = secret.decrypt(spec.api_key_encrypted.encode("ascii"))
        return lambda: opened
    variable = spec.api_key_env
    return lambda: os.environ.get(variable) if variable is not None else None


KINDS: Mapping[str, Callable[[str, UpstreamSpec, Surroundings], list[Upstream]]] = {"openai": _openai}

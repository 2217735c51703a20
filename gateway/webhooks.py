"""Posting alerts to webhooks: billing queues, signs and retries them; this is the HTTP.

Tenants' admins name the addresses, so a webhook must not become a hand inside the operator's network: only public
addresses are connected to, checked after the name was resolved and for the very address that is then used, so that a
name which resolves anew to something else changes nothing. Redirects are not followed. `webhook_private_hosts` allows
receivers in the operator's own network.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import DefaultResolver

from billing.errors import Invalid

TIMEOUT_S = 10.0
LOOK_UP_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 64 * 1024  # read so that the connection can be used again; a longer answer closes it


class WebhookRefused(Exception):
    """The receiver did not take the alert, or may not be spoken to. The message holds no secret."""


class WebhookClient:
    """billing.alerts.Delivery over aiohttp. Close it."""

    def __init__(self, *, allow_private: bool = False, resolver: AbstractResolver | None = None) -> None:
        self._allow_private = allow_private
        inner = resolver or DefaultResolver()
        connector = aiohttp.TCPConnector(
            limit=8, resolver=inner if allow_private else _PublicOnly(inner), use_dns_cache=False
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"user-agent": "weir-webhooks"},
        )

    async def __call__(self, url: str, body: bytes, headers: dict[str, str]) -> None:
        """Raises: WebhookRefused for an answer other than 2xx or an address that is not public; aiohttp.ClientError,
        TimeoutError."""
        host = urlsplit(url).hostname or ""
        if not self._allow_private and _is_literal(host):
            _check_public(host)  # aiohttp resolves names only: a literal address never reaches the resolver
        async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
            await answer.content.read(MAX_ANSWER_BYTES)
            if not 200 <= answer.status < 300:
                raise WebhookRefused(f"the receiver answered {answer.status}")

    async def close(self) -> None:
        """Ends the connections."""
        await self._session.close()


async def check_receiver(url: str, *, allow_private: bool, resolver: AbstractResolver | None = None) -> None:
    """What can be known of a webhook's address when it is named; every delivery checks it again.

    A name that leads nowhere now passes: it may lead somewhere later. Raises: Invalid for one that isn't public.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 443
    except ValueError as exc:
        raise Invalid(f"url: {exc}", param="url") from exc
    if allow_private or not host:
        return
    inner = resolver or DefaultResolver()
    try:
        if _is_literal(host):
            _check_public(host)
            return
        async with asyncio.timeout(LOOK_UP_TIMEOUT_S):
            await _PublicOnly(inner).resolve(host, port, socket.AF_UNSPEC)
    except WebhookRefused as exc:
        raise Invalid(f"url: {exc}", param="url") from exc
    except OSError:
        return
    finally:
        await inner.close()


class _PublicOnly(AbstractResolver):
    """Resolves as another does, and refuses a name that leads to any address that is not public."""

    def __init__(self, inner: AbstractResolver) -> None:
        self._inner = inner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        for each in found:
            _check_public(each["host"])
        return found

    async def close(self) -> None:
        await self._inner.close()


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _check_public(address: str) -> None:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None)
    if not (mapped or parsed).is_global or parsed.is_multicast:
        raise WebhookRefused("the receiver's address is not public; webhook_private_hosts allows it")

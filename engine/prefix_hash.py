"""Prefix hashes: block i's hash chains SHA-256 over block i-1's hash and block i's token ids.

The chain starts from the cache salt, which the server makes per tenant and project (HMAC): without the salt no hash
can be made, so one tenant's pages can never be found by another's prompt (CVE-2025-46570).
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

_DOMAIN = b"weir-kv-prefix-v1"


def root_hash(salt: bytes) -> bytes:
    """The chain's start. Length-framed, so that no salt is another's prefix. Raises: ValueError on an empty salt."""
    if not salt:
        raise ValueError("a cache salt is required: an empty one would share pages between tenants")
    return hashlib.sha256(_DOMAIN + len(salt).to_bytes(4, "little") + salt).digest()


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The hash of one full block after `parent`. Ids must fit 32 bits (validation bounds them)."""
    return hashlib.sha256(parent + array("I", token_ids).tobytes()).digest()


def extend_hashes(hashes: list[bytes], salt: bytes, token_ids: Sequence[int], block_size: int) -> None:
    """Appends to `hashes` those of all full blocks of `token_ids` it lacks."""
    parent = hashes[-1] if hashes else root_hash(salt)
    for start in range(len(hashes) * block_size, len(token_ids) - block_size + 1, block_size):
        parent = block_hash(parent, token_ids[start : start + block_size])
        hashes.append(parent)

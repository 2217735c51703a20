"""Prefix hashes: chained, salted, of full blocks only."""

from __future__ import annotations

import hashlib

import pytest

from engine.prefix_hash import block_hash, extend_hashes, root_hash


def _hashes(salt: bytes, ids: list[int]) -> list[bytes]:
    found: list[bytes] = []
    extend_hashes(found, salt, ids, 4)
    return found


def test_the_chain_is_sha256_over_parent_and_ids() -> None:
    (first, second) = _hashes(b"salt", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    ids = b"".join(i.to_bytes(4, "little") for i in (1, 2, 3, 4))
    assert first == hashlib.sha256(root_hash(b"salt") + ids).digest()
    assert second == block_hash(first, [5, 6, 7, 8])


def test_a_block_is_known_by_everything_before_it() -> None:
    assert _hashes(b"salt", [1, 2, 3, 4, 5, 6, 7, 8])[1] != _hashes(b"salt", [1, 2, 3, 0, 5, 6, 7, 8])[1]


def test_equal_prompts_of_two_tenants_share_no_hash() -> None:
    assert not set(_hashes(b"salt-a", list(range(40)))) & set(_hashes(b"salt-b", list(range(40))))
    assert root_hash(b"ab") != root_hash(b"a")
    with pytest.raises(ValueError, match="salt is required"):
        root_hash(b"")


def test_extending_equals_starting_afresh() -> None:
    grown: list[bytes] = []
    for length in range(0, 30):
        extend_hashes(grown, b"s", list(range(length)), 4)
        assert grown == _hashes(b"s", list(range(length)))

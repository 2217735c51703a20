"""Flat vectors: pruning by the head must never lose what a full scan finds."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.vectors import FlatVectors, pack_vectors


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(0, 200),
    dims=st.sampled_from([8, 96, 97, 384]),
    threshold=st.floats(-1, 1),
    spread=st.floats(0.01, 3),
)
def test_search_equals_a_full_scan(seed: int, count: int, dims: int, threshold: float, spread: float) -> None:
    rng = np.random.default_rng(seed)
    center = rng.standard_normal(dims)
    rows = (center + spread * rng.standard_normal((count, dims))).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    query = (center / np.linalg.norm(center)).astype(np.float32)
    vectors = FlatVectors(dims)
    vectors.add_many([str(number) for number in range(count)], rows)
    full = rows.astype(np.float64) @ query.astype(np.float64)
    found = vectors.search(query, threshold, limit=count + 1)
    assert {c.entry_id for c in found} >= {str(n) for n in range(count) if full[n] >= threshold + 1e-5}
    assert all(full[int(c.entry_id)] >= threshold - 1e-5 for c in found)
    assert all(abs(full[int(c.entry_id)] - c.similarity) < 1e-5 for c in found)
    assert [c.similarity for c in found] == sorted((c.similarity for c in found), reverse=True)


@given(st.lists(st.tuples(st.sampled_from(["add", "discard"]), st.integers(0, 20)), max_size=200))
def test_adding_and_discarding_in_any_order_keeps_ids_and_rows_together(steps: list[tuple[str, int]]) -> None:
    basis = np.eye(21, dtype=np.float32)
    vectors, expected = FlatVectors(21), set()
    for step, number in steps:
        if step == "add":
            vectors.add_many([str(number)], basis[number : number + 1])
            expected.add(str(number))
        else:
            vectors.discard(str(number))
            expected.discard(str(number))
    assert vectors.ids == expected
    for number in range(21):
        found = [candidate.entry_id for candidate in vectors.search(basis[number], 0.9, 5)]
        assert found == ([str(number)] if str(number) in expected else [])


def test_packed_vectors_are_little_endian_float32() -> None:
    vector = np.arange(5, dtype=np.float64)
    assert np.array_equal(np.frombuffer(pack_vectors([vector])[0], "<f4"), vector.astype(np.float32))

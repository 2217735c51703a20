"""Pages of one group: LRU order, owners' caps, sharing, condemned pages."""

from __future__ import annotations

import time

import pytest

from engine.block_pool import BlockPool


def _cached(pool: BlockPool, name: str, owner: str = "a") -> int:
    """A page that was used, named and released."""
    pages = pool.take(1)
    assert pages is not None
    pool.register(pages[0], name.encode(), owner)
    pool.release(pages[0])
    return pages[0]


def test_pages_are_free_then_referenced_then_cached() -> None:
    pool = BlockPool(9, 8)
    assert (pool.num_free, pool.num_cached, pool.num_referenced, pool.total) == (8, 0, 0, 8)
    page = _cached(pool, "x")
    assert pool.lookup(b"x") == page
    pool.share(page)
    pool.share(page)
    assert (pool.num_free, pool.num_cached, pool.num_referenced) == (7, 0, 1)
    pool.release(page)
    pool.release(page)
    assert (pool.num_free, pool.num_cached, pool.num_referenced) == (7, 1, 0)
    with pytest.raises(AssertionError, match="without a reference"):
        pool.release(page)


def test_nothing_is_taken_when_too_little_is_there() -> None:
    pool = BlockPool(4, 3)
    assert pool.take(4) is None
    assert pool.num_free == 3
    assert 0 not in (pool.take(3) or [])  # page 0 is never given out
    assert pool.take(1) is None


def test_the_least_recently_used_page_is_evicted_first() -> None:
    pool = BlockPool(4, 3)
    for name in "xyz":
        _cached(pool, name)
    hit = pool.lookup(b"x")
    assert hit is not None
    pool.share(hit)
    pool.release(hit)
    pool.take(2)
    assert pool.lookup(b"x") is not None
    assert pool.lookup(b"y") is None
    assert pool.lookup(b"z") is None


def test_one_owner_cannot_flush_the_others() -> None:
    # Given a quiet tenant's two cached pages and a cap of four of ten
    pool = BlockPool(11, 4)
    for i in range(2):
        _cached(pool, f"quiet{i}", "quiet")
    # When a loud one caches fifty prefixes
    for i in range(50):
        _cached(pool, f"loud{i}", "loud")
        pool.check()
    # Then the quiet one's are still there, though they are the oldest
    assert all(pool.lookup(f"quiet{i}".encode()) is not None for i in range(2))
    assert pool.num_cached_of("quiet") == 2


def test_alone_an_owner_may_fill_the_pool() -> None:
    pool = BlockPool(11, 4)
    for i in range(10):
        _cached(pool, f"only{i}")
    assert pool.num_cached_of("a") == 10


def test_a_condemned_page_is_never_found_again_and_is_zeroed() -> None:
    pool = BlockPool(5, 4)
    pages = pool.take(1)
    assert pages is not None
    pool.register(pages[0], b"x", "a")
    pool.share(pages[0])
    pool.condemn(pages[0])
    assert pool.lookup(b"x") is None
    pool.release(pages[0])
    assert pool.pages_to_zero == []
    pool.release(pages[0])
    assert pool.pages_to_zero == pages
    assert (pool.num_free, pool.num_cached) == (4, 0)


def test_operations_cost_the_same_in_a_large_pool() -> None:
    def seconds(num_pages: int) -> float:
        pool = BlockPool(num_pages, num_pages)
        for i in range(num_pages - 1):
            _cached(pool, str(i))
        best = float("inf")
        for trial in range(5):
            started = time.perf_counter()
            for i in range(2000):
                _cached(pool, f"n{trial}-{i}")
            best = min(best, time.perf_counter() - started)
        return best

    # Caches of the processor alone make it up to ten times slower; walking the pages would make it a hundred times.
    assert seconds(200_000) < 30 * seconds(2_000)

"""`BlockPool`: the pages of one group. Each is free, cached or referenced, and free + cached + referenced = total.

free: no content worth keeping. cached: a finished prefix, found by its hash, evicted least recently used first.
referenced: in one or more block tables. Every operation is O(1). Page 0 is the null page and belongs to no state.
"""

from __future__ import annotations

from collections import OrderedDict


class BlockPool:
    """Args: num_pages of the pool tensor (page 0 among them); cap_per_owner: cached pages an owner (a tenant) may hold
    before its pages are evicted ahead of everyone else's."""

    def __init__(self, num_pages: int, cap_per_owner: int) -> None:
        if num_pages < 2:
            raise ValueError(f"a pool needs at least 2 pages (page 0 is the null page), got {num_pages}")
        self.total = num_pages - 1
        self._cap = max(1, cap_per_owner)
        self._free = list(range(num_pages - 1, 0, -1))
        self._references = [0] * num_pages
        self._num_referenced = 0
        # OrderedDict and not deque: a hit takes a page out of the middle, which a deque does in O(n).
        self._lru: OrderedDict[int, None] = OrderedDict()
        self._lru_of_owner: dict[str, OrderedDict[int, None]] = {}
        self._over_cap: dict[str, None] = {}
        self._page_of_hash: dict[bytes, int] = {}
        self._hash_of_page: dict[int, bytes] = {}
        self._owner_of_page: dict[int, str] = {}
        self._dirty: set[int] = set()
        self.pages_to_zero: list[int] = []

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._lru)

    @property
    def num_referenced(self) -> int:
        return self._num_referenced

    @property
    def num_available(self) -> int:
        """Pages that `take` can give: free ones, and cached ones by eviction."""
        return len(self._free) + len(self._lru)

    def references(self, page: int) -> int:
        return self._references[page]

    def num_cached_of(self, owner: str) -> int:
        return len(self._lru_of_owner.get(owner, ()))

    def take(self, count: int) -> list[int] | None:
        """`count` pages with one reference each, or None (and nothing taken) when fewer are available."""
        if count > self.num_available:
            return None
        pages = []
        for _ in range(count):
            if not self._free:
                self._evict()
            page = self._free.pop()
            self._references[page] = 1
            pages.append(page)
        self._num_referenced += count
        return pages

    def lookup(self, prefix_hash: bytes) -> int | None:
        """The page that holds this prefix block, without taking a reference."""
        return self._page_of_hash.get(prefix_hash)

    def share(self, page: int) -> None:
        """One more reference to a cached or referenced page."""
        if self._references[page] == 0:
            self._leave_lru(page)
            self._num_referenced += 1
        self._references[page] += 1

    def release(self, page: int) -> None:
        """One reference less. The last one makes the page cached (if it has a hash) or free."""
        assert self._references[page] > 0, f"page {page} released without a reference"
        self._references[page] -= 1
        if self._references[page]:
            return
        self._num_referenced -= 1
        if page in self._hash_of_page:
            self._enter_lru(page)
            return
        if page in self._dirty:
            self._dirty.discard(page)
            self.pages_to_zero.append(page)
        self._free.append(page)

    def register(self, page: int, prefix_hash: bytes, owner: str) -> None:
        """Makes a full page findable. The first page with a hash keeps it; a later twin stays unnamed."""
        if prefix_hash in self._page_of_hash or page in self._hash_of_page:
            return
        self._page_of_hash[prefix_hash] = page
        self._hash_of_page[page] = prefix_hash
        self._owner_of_page[page] = owner

    def condemn(self, page: int) -> None:
        """A referenced page whose content must never be read again (NaN): unnamed now, zeroed once unreferenced."""
        self._unname(page)
        self._dirty.add(page)

    def reset_cache(self) -> int:
        """Evicts every cached page. Returns how many."""
        evicted = len(self._lru)
        while self._lru:
            self._evict()
        return evicted

    def check(self) -> None:
        """Asserts the pool's invariants, O(total); tests call it after every step."""
        referenced = sum(1 for count in self._references if count > 0)
        assert referenced == self._num_referenced, f"{referenced} pages referenced, {self._num_referenced} counted"
        assert len(self._free) + len(self._lru) + referenced == self.total, (
            f"free {len(self._free)} + cached {len(self._lru)} + referenced {referenced} != {self.total}"
        )
        assert len(set(self._free)) == len(self._free), "a page is free twice"
        assert not set(self._free) & set(self._lru), "a page is free and cached"
        assert all(self._references[page] == 0 for page in (*self._free, *self._lru)), "a free page is referenced"
        assert sum(len(lru) for lru in self._lru_of_owner.values()) == len(self._lru), (
            "owners' lists and the list differ"
        )

    def _enter_lru(self, page: int) -> None:
        owner = self._owner_of_page[page]
        self._lru[page] = None
        mine = self._lru_of_owner.setdefault(owner, OrderedDict())
        mine[page] = None
        if len(mine) > self._cap:
            self._over_cap[owner] = None

    def _leave_lru(self, page: int) -> None:
        owner = self._owner_of_page[page]
        del self._lru[page]
        mine = self._lru_of_owner[owner]
        del mine[page]
        if len(mine) <= self._cap:
            self._over_cap.pop(owner, None)
        if not mine:
            del self._lru_of_owner[owner]

    def _evict(self) -> None:
        """Frees one cached page: the oldest of an owner above its cap, else the oldest of all."""
        owner = next(iter(self._over_cap), None)
        page = next(iter(self._lru if owner is None else self._lru_of_owner[owner]))
        self._leave_lru(page)
        self._unname(page)
        self._free.append(page)

    def _unname(self, page: int) -> None:
        prefix_hash = self._hash_of_page.pop(page, None)
        if prefix_hash is not None:
            del self._page_of_hash[prefix_hash]
            del self._owner_of_page[page]

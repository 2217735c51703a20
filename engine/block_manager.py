"""`BlockManager`: which pages a sequence has, in every group. Prefix hits, growth, copy-on-write, windows, swap.

One release path: every way a sequence loses its pages (end, abort, failure, preemption) goes through `release`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.block_pool import BlockPool
from engine.prefix_hash import extend_hashes
from engine.sequence import Sequence as TokenSequence
from engine.step_plan import PageMove, StepPlan, TableUpdate

UNBOUNDED = 1 << 30  # tokens; no model's context comes near


@dataclass(frozen=True)
class GroupLayout:
    """One page group as the host sees it: window in tokens (None = full), device pages (page 0 is null), host pages
    for swap."""

    window: int | None
    num_pages: int
    num_host_pages: int = 0


@dataclass(frozen=True)
class PrefixHit:
    """`num_tokens` of a prompt that need no computing; `pages` per group, 0 where a window needs none."""

    num_tokens: int
    pages: tuple[tuple[int, ...], ...]


class BlockManager:
    """Args: groups; block_size in tokens; max_chunk: most tokens of one sequence in a step; cap_share: a tenant's share
    of all pages as cached prefixes, above which its pages are evicted first."""

    def __init__(
        self,
        groups: Sequence[GroupLayout],
        *,
        block_size: int,
        max_chunk: int,
        enable_prefix_caching: bool = True,
        cap_share: float = 0.5,
    ) -> None:
        self.groups = tuple(groups)
        self.block_size = block_size
        self.max_chunk = max_chunk
        self.enable_prefix_caching = enable_prefix_caching
        self.pools = tuple(BlockPool(g.num_pages, int(cap_share * (g.num_pages - 1))) for g in self.groups)
        self._host_free = [list(range(g.num_host_pages - 1, -1, -1)) for g in self.groups]
        # A host page read by this step's swap_in must not be written by the same step's swap_out, which runs first.
        self._host_returning: list[list[int]] = [[] for _ in self.groups]

    # -- sizes -------------------------------------------------------------------------------------------------

    def resident_blocks(self, group: int, num_tokens: int) -> int:
        """Most pages a sequence of `num_tokens` holds at once in `group`."""
        blocks = -(-num_tokens // self.block_size)
        window = self.groups[group].window
        if window is None:
            return blocks
        return min(blocks, -(-(window + self.max_chunk) // self.block_size) + 1)

    def max_tokens_alone(self) -> int:
        """The longest sequence that fits with every page to itself; UNBOUNDED when windows free pages in time."""
        longest = UNBOUNDED
        for g, pool in enumerate(self.pools):
            if self.resident_blocks(g, UNBOUNDED) > pool.total:
                longest = min(longest, pool.total * self.block_size)
        return longest

    def missing_blocks(self, sequence: TokenSequence) -> list[int]:
        """Per group, the pages a running sequence still lacks for the tokens it has."""
        missing = []
        for g, table in enumerate(sequence.block_tables):
            have = len(table) - sequence.first_columns[g]
            missing.append(max(0, self.resident_blocks(g, sequence.num_tokens) - have))
        return missing

    # -- admission ---------------------------------------------------------------------------------------------

    def extend_hashes(self, sequence: TokenSequence) -> None:
        """Hashes the full known blocks; called when a request arrives and as blocks fill, off the critical step."""
        if self.enable_prefix_caching:
            extend_hashes(sequence.hashes, sequence.group.request.cache_salt, sequence.token_ids, self.block_size)

    def match_prefix(self, sequence: TokenSequence) -> PrefixHit:
        """The longest cached prefix, at least one token short of the whole: logits need a token to be computed.

        A window group must hold the blocks that the next token's window reaches back to; those before are not needed.
        """
        empty = PrefixHit(0, tuple(() for _ in self.groups))
        if not self.enable_prefix_caching or sequence.group.request.sampling.prompt_logprobs is not None:
            return empty
        most = min(len(sequence.hashes), (len(sequence.token_ids) - 1) // self.block_size)
        for g, group in enumerate(self.groups):
            if group.window is None:
                most = self._leading_hits(g, sequence.hashes[:most])
        while most > 0:
            shorter = min((self._window_hit(g, sequence.hashes, most) for g in range(len(self.groups))), default=most)
            if shorter == most:
                break
            most = shorter
        if most <= 0:
            return empty
        return PrefixHit(
            most * self.block_size, tuple(self._hit_pages(g, sequence.hashes, most) for g in range(len(self.groups)))
        )

    def can_admit(self, sequence: TokenSequence, hit: PrefixHit, reserved: Sequence[int]) -> bool:
        """Whether the sequence's known tokens fit beside `reserved` pages per group promised to running prefills."""
        for g, pool in enumerate(self.pools):
            if sequence.host_pages is not None:
                need = max(len(sequence.host_pages[g]), self.resident_blocks(g, sequence.num_tokens))
            else:
                shared = [page for page in hit.pages[g] if page]
                revived = sum(1 for page in shared if pool.references(page) == 0)
                fresh = max(0, self.resident_blocks(g, sequence.num_tokens) - len(shared))
                need = fresh + revived
            if need > pool.num_available - reserved[g]:
                return False
        return True

    def admit(self, sequence: TokenSequence, hit: PrefixHit) -> None:
        """Gives a sequence without pages the pages of its prefix hit."""
        assert not sequence.block_tables, "admitted with pages"
        for pool, pages in zip(self.pools, hit.pages, strict=True):
            for page in pages:
                if page:
                    pool.share(page)
            sequence.block_tables.append(list(pages))
            sequence.first_columns.append(next((i for i, page in enumerate(pages) if page), len(pages)))
        sequence.num_computed = hit.num_tokens
        sequence.num_registered = hit.num_tokens // self.block_size

    # -- growth ------------------------------------------------------------------------------------------------

    def grow(self, sequence: TokenSequence, end: int, plan: StepPlan) -> bool:
        """Pages for tokens up to `end`; the block written next is copied first if it is shared (after a fork).

        Returns False, with nothing changed, when a group is short of pages.
        """
        columns = -(-end // self.block_size)
        write_column = sequence.num_computed // self.block_size
        needs = []
        for pool, table in zip(self.pools, sequence.block_tables, strict=True):
            copies = write_column < len(table) and pool.references(table[write_column]) > 1
            needs.append((max(0, columns - len(table)), copies))
        if any(new + copies > pool.num_available for pool, (new, copies) in zip(self.pools, needs, strict=True)):
            return False
        for g, (new, copies) in enumerate(needs):
            pool, table = self.pools[g], sequence.block_tables[g]
            if copies:
                page = _one(pool)
                plan.copies.append(PageMove(g, table[write_column], page))
                pool.release(table[write_column])
                table[write_column] = page
                plan.table_updates.append(TableUpdate(g, sequence.row, write_column, (page,)))
            if new:
                pages = pool.take(new)
                assert pages is not None
                plan.table_updates.append(TableUpdate(g, sequence.row, len(table), tuple(pages)))
                table.extend(pages)
        return True

    def trim(self, sequence: TokenSequence) -> None:
        """Gives back the pages behind the last computed token: those of drafts that did not hold."""
        keep = -(-sequence.num_computed // self.block_size)
        for pool, table in zip(self.pools, sequence.block_tables, strict=True):
            while len(table) > keep:
                pool.release(table.pop())

    def leave_window(self, sequence: TokenSequence) -> None:
        """Releases the pages no later token of the sequence can see."""
        for g, group in enumerate(self.groups):
            if group.window is None:
                continue
            table = sequence.block_tables[g]
            first_needed = min(max(0, sequence.num_computed - group.window + 1) // self.block_size, len(table))
            for column in range(sequence.first_columns[g], first_needed):
                self.pools[g].release(table[column])
                table[column] = 0
            sequence.first_columns[g] = max(sequence.first_columns[g], first_needed)

    def register(self, sequence: TokenSequence) -> None:
        """Makes the blocks findable whose tokens are known and computed (or scheduled: the device runs in order)."""
        if not self.enable_prefix_caching:
            return
        full = min(sequence.num_computed, len(sequence.token_ids)) // self.block_size
        if full <= sequence.num_registered:
            return
        self.extend_hashes(sequence)
        owner = sequence.group.request.tenant
        for g, table in enumerate(sequence.block_tables):
            for column in range(sequence.num_registered, full):
                if table[column]:
                    self.pools[g].register(table[column], sequence.hashes[column], owner)
        sequence.num_registered = full

    def fork(self, parent: TokenSequence, child: TokenSequence) -> None:
        """The child shares all of the parent's pages; `grow` copies the partial one when either writes to it."""
        for pool, table in zip(self.pools, parent.block_tables, strict=True):
            for page in table:
                if page:
                    pool.share(page)
            child.block_tables.append(list(table))
        child.first_columns = list(parent.first_columns)
        child.hashes = list(parent.hashes)
        child.num_registered = parent.num_registered

    # -- giving back -------------------------------------------------------------------------------------------

    def release(self, sequence: TokenSequence, *, condemn: bool = False) -> None:
        """Gives back every page, device and host; harmless on a sequence without any. Tail first, so that the LRU
        evicts a prefix's tail before its head. `condemn`: contents are not to be read again (NaN)."""
        for pool, table in zip(self.pools, sequence.block_tables, strict=False):
            for page in reversed(table):
                if page:
                    if condemn:
                        pool.condemn(page)
                    pool.release(page)
        sequence.block_tables = []
        sequence.first_columns = []
        sequence.num_registered = 0
        if sequence.host_pages is not None:
            for g, held in enumerate(sequence.host_pages):
                self._host_returning[g].extend(held.values())
            sequence.host_pages = None

    def start_step(self, plan: StepPlan) -> None:
        """Host pages freed by the last step become usable; condemned pages that became free are zeroed."""
        for free, returning in zip(self._host_free, self._host_returning, strict=True):
            free.extend(returning)
            returning.clear()
        for g, pool in enumerate(self.pools):
            plan.zero.extend((g, page) for page in pool.pages_to_zero)
            pool.pages_to_zero.clear()

    # -- swap --------------------------------------------------------------------------------------------------

    def can_swap_out(self, sequence: TokenSequence) -> bool:
        return all(
            sum(1 for page in table if page) <= len(free)
            for table, free in zip(sequence.block_tables, self._host_free, strict=True)
        )

    def swap_out(self, sequence: TokenSequence, plan: StepPlan) -> None:
        """Moves the sequence's pages to host memory. `num_computed` stays: nothing is computed again."""
        host_pages: list[dict[int, int]] = []
        for g, table in enumerate(sequence.block_tables):
            held: dict[int, int] = {}
            for column, page in enumerate(table):
                if page:
                    held[column] = self._host_free[g].pop()
                    plan.swap_out.append(PageMove(g, page, held[column]))
            host_pages.append(held)
        columns = [len(table) for table in sequence.block_tables]
        self.release(sequence)
        sequence.host_pages = host_pages
        sequence.block_tables = []
        assert len(set(columns)) <= 1, "groups differ in length"

    def swap_in(self, sequence: TokenSequence, plan: StepPlan) -> None:
        """Brings a swapped sequence back; `can_admit` said that it fits. Blocks still cached are shared, not copied."""
        assert sequence.host_pages is not None
        columns = -(-sequence.num_computed // self.block_size)
        host_pages, sequence.host_pages = sequence.host_pages, None
        for g, held in enumerate(host_pages):
            table = [0] * columns
            for column, host_page in held.items():
                table[column] = self._page_back(g, sequence, column, host_page, plan)
                self._host_returning[g].append(host_page)
            sequence.block_tables.append(table)
            sequence.first_columns.append(min(held, default=columns))
        sequence.num_registered = 0

    def _page_back(self, g: int, sequence: TokenSequence, column: int, host_page: int, plan: StepPlan) -> int:
        pool = self.pools[g]
        is_full = (column + 1) * self.block_size <= min(sequence.num_computed, len(sequence.token_ids))
        if self.enable_prefix_caching and is_full and column < len(sequence.hashes):
            cached = pool.lookup(sequence.hashes[column])
            if cached is not None:
                pool.share(cached)
                return cached
        page = _one(pool)
        plan.swap_in.append(PageMove(g, host_page, page))
        return page

    # -- checks and figures ------------------------------------------------------------------------------------

    def check(self, sequences: Iterable[TokenSequence] = ()) -> None:
        """Asserts every pool's invariants and, given all sequences, that references equal the block tables' entries."""
        for pool in self.pools:
            pool.check()
        held = list(sequences)
        for g, pool in enumerate(self.pools):
            counts: dict[int, int] = {}
            for sequence in held:
                for page in sequence.block_tables[g] if sequence.block_tables else ():
                    if page:
                        counts[page] = counts.get(page, 0) + 1
            if held or pool.num_referenced:
                assert counts == {p: pool.references(p) for p in range(1, pool.total + 1) if pool.references(p)}, (
                    f"group {g}: tables hold {counts}"
                )

    def _leading_hits(self, g: int, hashes: Sequence[bytes]) -> int:
        pool = self.pools[g]
        return next((i for i, digest in enumerate(hashes) if pool.lookup(digest) is None), len(hashes))

    def _first_needed(self, g: int, num_blocks: int) -> int:
        window = self.groups[g].window
        return 0 if window is None else max(0, num_blocks * self.block_size - window + 1) // self.block_size

    def _window_hit(self, g: int, hashes: Sequence[bytes], most: int) -> int:
        """The longest hit of at most `most` blocks that window group `g` can serve: one pass from the right."""
        if self.groups[g].window is None:
            return most
        pool = self.pools[g]
        end = column = most
        while end > 0:
            while column > self._first_needed(g, end):
                if pool.lookup(hashes[column - 1]) is None:
                    end = column - 1
                    column = end
                    break
                column -= 1
            else:
                return end
        return 0

    def _hit_pages(self, g: int, hashes: Sequence[bytes], num_blocks: int) -> tuple[int, ...]:
        first = self._first_needed(g, num_blocks)
        pages = [self.pools[g].lookup(digest) if i >= first else 0 for i, digest in enumerate(hashes[:num_blocks])]
        assert None not in pages
        return tuple(page or 0 for page in pages)


def _one(pool: BlockPool) -> int:
    pages = pool.take(1)
    assert pages is not None, "the caller has checked what is available"
    return pages[0]

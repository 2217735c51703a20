"""`Sequence`: one line of tokens being made; `RequestGroup`: a request's sequences. Pure Python, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from engine.types import EngineRequest, FinishReason

if TYPE_CHECKING:
    from engine.ngram_proposer import DraftState


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class RequestGroup:
    """One request: `n` (or `best_of`) sequences over one prompt.

    arrival orders requests (0, 1, ...). cached_tokens is what the first admission found in the prefix cache.
    engine_us is the request's share of engine time so far. waits_in_gate: counted in the queue gate until first run.
    """

    request: EngineRequest
    arrival: int
    max_tokens: int
    seed: int
    num_sequences: int
    sequences: list[Sequence] = field(default_factory=list)
    cached_tokens: int | None = None
    engine_us: int = 0
    waits_in_gate: bool = True

    @property
    def finished(self) -> bool:
        return all(sequence.status is Status.FINISHED for sequence in self.sequences) and not self.fork_pending

    @property
    def fork_pending(self) -> bool:
        """The siblings do not exist yet: they are forked when the prompt's last chunk runs."""
        return len(self.sequences) < self.num_sequences and self.sequences[0].status is not Status.FINISHED


@dataclass(eq=False, slots=True)
class Sequence:
    """Three integers tell where it stands: `num_computed` tokens have (or are scheduled to have) KV, `num_tokens`
    exist (the prompt and every output started, read back or not), `len(token_ids)` are known to the host.

    block_tables: one list of pages a group, 0 where a window left the page; columns before first_columns[group] are
    0. hashes: of all full known blocks.
    num_scored: prompt positions whose logprobs were given, which a recompute must not give again.
    row: its row in the runner's state table while running. host_pages: per group {column: host page} while swapped.
    drafts: what speculation knows of it, once it has proposed.
    """

    group: RequestGroup
    index: int
    token_ids: list[int]
    num_prompt: int
    num_tokens: int
    num_computed: int = 0
    num_registered: int = 0
    row: int = -1
    status: Status = Status.WAITING
    block_tables: list[list[int]] = field(default_factory=list)
    first_columns: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    host_pages: list[dict[int, int]] | None = None
    num_preemptions: int = 0
    num_scored: int = 0
    drafts: DraftState | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    @property
    def num_outputs(self) -> int:
        """Output tokens started, those not read back yet among them."""
        return self.num_tokens - self.num_prompt

    @property
    def num_in_flight(self) -> int:
        """Output tokens sampled on the device that the host has not read."""
        return self.num_tokens - len(self.token_ids)

    @property
    def num_pending(self) -> int:
        """Tokens to compute before the next one can be sampled; 0 when the last one was started."""
        if self.num_outputs >= self.group.max_tokens:
            return 0
        return self.num_tokens - self.num_computed

    @property
    def is_decoding(self) -> bool:
        return self.num_tokens - self.num_computed == 1 and self.num_outputs > 0

    @property
    def max_total(self) -> int:
        """Tokens whose KV may ever be needed: the last output's is not."""
        return self.num_prompt + self.group.max_tokens - 1

    @property
    def order(self) -> tuple[int, int, int]:
        """Smaller runs first: class, arrival, index."""
        return (int(self.group.request.priority), self.group.arrival, self.index)

    @property
    def needs_host_tokens(self) -> bool:
        """The next step's logits mask depends on the last token's value, so it must be read back first."""
        return self.group.request.sampling.grammar is not None

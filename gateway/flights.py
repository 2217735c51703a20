"""Identical questions at once make one generation: its events, as watchers here and on other gateways see them."""

from __future__ import annotations

import msgspec

from cache.shared_flight import FlightTiming, SharedFlight
from cache.store import RedisStore
from gateway.calls import Counts, Piece


class Served(msgspec.Struct):
    """An event of a generation, as its watchers see it. `truncated_reason`: its payer's budget ended it here."""

    pieces: list[Piece]
    counts: Counts
    truncated_reason: str | None = None


def finishes(pieces: list[Piece]) -> bool:
    """Whether a choice ends here. Finish reasons leave together, after the ledger row."""
    return any(piece.finish_reason is not None for piece in pieces)


def make_flights(store: RedisStore, *, deadline_s: float) -> SharedFlight[Served]:
    """Flights of all gateways on the store's Redis. Args: deadline_s bounds a claim, then a gateway flies alone."""
    return SharedFlight(
        store,
        encode=_encoder.encode,
        decode=_decoder.decode,
        is_last=lambda served: finishes(served.pieces),
        timing=FlightTiming(claim_timeout_s=deadline_s),
    )


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Served)

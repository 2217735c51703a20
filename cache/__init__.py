"""Answers already paid for: exact and semantic. (The KV cache is the engine's, not here.) No HTTP.

The road of one request through this package, in the order the gateway takes it:

    policy.decide(request, policy)        may it be read, written, matched by meaning; the reason of a bypass
    partition.partition_digest, exact_key the hex names under which answers may be shared
    store.RedisStore.lookup               a pipeline stage: the exact answer and the partition's version, one trip
    semantic.SemanticCache.lookup         the nearest question of the partition that passes the guards
    single_flight.SingleFlight            identical concurrent misses make one generation
    entry.why_not_stored, store.put       remembering a whole answer, as a stage again

Beside the road: `embedder` (text to unit vectors, also for /v1/embeddings), `guards/` (one subject a file),
`live_data` and `personal` (wordings that must not be shared), `invalidation`, `replay`, `shadow`.
`outcome` holds the words that headers and metrics use.
"""

"""`weir bench`: the shared workloads on any model or shape, static against continuous batching, a sweep of slots."""

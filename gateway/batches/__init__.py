"""/v1/batches: JSONL in, JSONL out, at batch priority and batch price, by whichever gateway holds the lease."""

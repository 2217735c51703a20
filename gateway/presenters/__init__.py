"""How an answer is written: one module an endpoint, from the pipeline's pieces to that endpoint's JSON and SSE."""

"""One example body an operation, for the OpenAPI document. A test sends each to a server that has the models."""

from __future__ import annotations

from typing import Any

MODEL, EMBEDDER = "smollm2", "all-MiniLM-L6-v2"

EXAMPLES: dict[str, dict[str, Any]] = {
    "CreateChatCompletion": {
        "model": MODEL,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_completion_tokens": 16,
        "temperature": 0,
    },
    "CreateCompletion": {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0},
    "CreateEmbedding": {"model": EMBEDDER, "input": ["a small dam", "a weir"], "encoding_format": "float"},
    "CreateResponse": {"model": MODEL, "input": "Say hello.", "max_output_tokens": 16},
    "CountResponseTokens": {"model": MODEL, "input": "Say hello."},
    "CreateMessage": {"model": MODEL, "max_tokens": 16, "messages": [{"role": "user", "content": "Say hello."}]},
    "CountMessageTokens": {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}]},
    "Tokenize": {"model": MODEL, "prompt": "a small dam"},
    "TokenizeAtV1Tokenize": {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}]},
    "Detokenize": {"model": MODEL, "tokens": [1, 2, 3]},
    "DetokenizeAtV1Detokenize": {"model": MODEL, "tokens": [1, 2, 3]},
}

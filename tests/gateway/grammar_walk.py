"""What a model at infinite temperature would write under a grammar: random walks over its masks, byte by byte."""

from __future__ import annotations

import random

from llguidance import LLMatcher, LLTokenizer

BYTES = LLTokenizer("byte")
EOS = BYTES.eos_tokens[0]
CLOSING = frozenset({EOS, *b'"}]'})


def walk(grammar: str, rng: random.Random, *, max_bytes: int = 4000) -> str | None:
    """A random complete output; None when it was not complete after `max_bytes`.

    Bytes that close something are drawn more often than uniformly, or long strings would never end.
    """
    matcher = LLMatcher(BYTES, grammar)
    out = bytearray()
    while len(out) < max_bytes:
        assert not matcher.is_error(), matcher.get_error()
        if matcher.is_stopped():
            return out.decode()
        mask = matcher.compute_bitmask()
        allowed = [i for i in range(BYTES.vocab_size) if mask[i // 8] >> (i % 8) & 1]
        assert allowed
        closing = [i for i in allowed if i in CLOSING]
        token = rng.choice(closing) if closing and rng.random() < 0.4 else rng.choice(allowed)
        if token == EOS:
            return out.decode()
        assert matcher.consume_token(token)
        out.append(token)
    return None


def accepts(grammar: str, text: str) -> bool:
    """Whether the grammar takes the whole text as complete."""
    matcher = LLMatcher(BYTES, grammar)
    tokens = list(text.encode())
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())

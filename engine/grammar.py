"""Grammar masks for structured output, by llguidance: which tokens may come next in each sequence of a batch."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import torch

from engine.errors import InvalidRequest
from engine.sequence import Sequence
from engine.tokenizer import Tokenizer
from engine.types import SamplingParams

# A grammar is compiled before it is queued, on a thread of the caller: these and its length bound time and memory.
MAX_GRAMMAR_SIZE = 500_000
INITIAL_LEXER_FUEL = 1_000_000
MAX_CACHED_GRAMMARS = 64


class GrammarMasks:
    """One matcher a sequence with a grammar, kept across preemption.

    Args: tokenizer None: requests with a grammar are refused. logits_width: tokens a mask covers.
    """

    def __init__(self, tokenizer: Tokenizer | None, logits_width: int, eos_token_ids: Seq[int]) -> None:
        self._tokenizer = tokenizer
        self._logits_width = logits_width
        self._eos = list(eos_token_ids)
        self._matchers: dict[Sequence, Any] = {}
        self._cache: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def validate(self, sampling: SamplingParams) -> None:
        """Compiles a request's grammar, once for equal ones; from any thread, and better not from an event loop's.

        Raises: InvalidRequest with llguidance's reason.
        """
        if sampling.grammar is None:
            return
        if self._tokenizer is None:
            raise InvalidRequest("this engine has no tokenizer, so it takes no grammars", param="grammar")
        matcher = self._compiled(sampling.grammar)
        reason = _first_fault(matcher)
        if reason is not None:
            raise InvalidRequest(f"the grammar cannot be used: {reason}", param="grammar")

    def masks(self, sequences: Seq[Sequence], device: torch.device) -> dict[int, torch.Tensor]:
        """Row -> bool [logits_width] of the rows whose sequence has a grammar, True = allowed. A matcher that met an
        error of its own (a limit) allows nothing, so that its sequence fails and no other."""
        found: dict[int, torch.Tensor] = {}
        for row, sequence in enumerate(sequences):
            grammar = sequence.group.request.sampling.grammar
            if grammar is None:
                continue
            matcher = self._matchers.get(sequence)
            if matcher is None:
                matcher = self._matchers[sequence] = self._compiled(grammar)
            bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            allowed = np.unpackbits(bits, bitorder="little", count=self._logits_width).astype(bool)
            if matcher.is_error():
                allowed = np.zeros(self._logits_width, dtype=bool)
            found[row] = torch.from_numpy(allowed).to(device)
        return found

    def advance(self, sequence: Sequence, token_id: int) -> bool:
        """A token was chosen. Returns False if the sequence's grammar refuses it."""
        matcher = self._matchers.get(sequence)
        return matcher is None or bool(matcher.consume_token(token_id))

    def is_complete(self, sequence: Sequence) -> bool:
        """Whether the grammar allows nothing more."""
        matcher = self._matchers.get(sequence)
        return matcher is not None and bool(matcher.is_stopped())

    def forget(self, sequence: Sequence) -> None:
        """The sequence ended."""
        self._matchers.pop(sequence, None)

    def _compiled(self, grammar: str) -> Any:
        """A fresh matcher. Compiling a large schema takes seconds, copying a compiled one microseconds: the engine's
        thread finds here what `validate` compiled on the caller's."""
        with self._lock:
            known = self._cache.get(grammar)
            if known is not None:
                self._cache.move_to_end(grammar)
                return known.deep_copy()
            tokens = self._tokens  # two callers must not both build the token trie
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(
            max_grammar_size=MAX_GRAMMAR_SIZE, initial_lexer_fuel=INITIAL_LEXER_FUEL, verbose_errors=False
        )
        matcher = LLMatcher(tokens, grammar, log_level=0, limits=limits)
        with self._lock:
            self._cache[grammar] = matcher
            if len(self._cache) > MAX_CACHED_GRAMMARS:
                self._cache.popitem(last=False)
        return matcher.deep_copy()

    @functools.cached_property
    def _tokens(self) -> Any:
        """llguidance's token trie: a third of a second for 49k tokens, built when the first grammar comes."""
        from llguidance import LLTokenizer

        assert self._tokenizer is not None, "validate refuses grammars without one"
        return LLTokenizer(self._tokenizer.spec, n_vocab=self._logits_width, eos_token=self._eos)


def _first_fault(matcher: Any) -> str | None:
    """Why a grammar fails at once. Parser limits show only when masks are worked out, so two tokens are tried: what is
    too large for the second one would end every answer as an error."""
    for _ in range(2):
        allowed = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little").nonzero()[
            0
        ]
        if matcher.is_error():
            return str(matcher.get_error()).split("\n", 1)[0]
        if matcher.is_stopped():
            return None
        if not allowed.size:
            return f"no token may come next ({matcher.stop_reason()})"
        matcher.consume_token(int(allowed[-1]))
    return None

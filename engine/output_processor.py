"""`OutputProcessor`: token ids of the core become deltas with text. Detokenizing, stop strings, logprobs, best_of.

It runs on the client's side of the core (in a gateway worker, with the child client), imports no torch and is O(new
tokens). One object serves many requests; it is not thread-safe.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from engine.core_output import CoreOutput, TokenScore
from engine.detokenizer import IncrementalDetokenizer
from engine.errors import EngineError, RequestFailed
from engine.stop_strings import AnswerStopFinder, StopFinder
from engine.tokenizer import Tokenizer
from engine.types import Delta, EngineRequest, FinishReason, SamplingParams, TokenLogprob


class StopSequence(Protocol):
    """Tells the core that a sequence ended by its text."""

    def __call__(self, request_id: str, index: int) -> None: ...


@dataclass
class _Sequence:
    """A sequence's text so far. `kept` collects its deltas while best_of decides."""

    detokenizer: IncrementalDetokenizer
    stops: StopFinder
    completion_tokens: int = 0
    cumulative_logprob: float = 0.0
    done: bool = False
    kept: list[Delta] = field(default_factory=list)


@dataclass
class _Request:
    request: EngineRequest
    num_sequences: int
    sequences: dict[int, _Sequence] = field(default_factory=dict)
    prompt_scores: list[TokenScore] = field(default_factory=list)
    prompt_sent: bool = False
    num_done: int = 0
    engine_us: int = 0

    @property
    def ranks(self) -> bool:
        """Whether more sequences are made than are returned."""
        return self.num_sequences > self.request.sampling.n


class OutputProcessor:
    """Args: tokenizer of the model; stop_sequence is called when a stop string is found."""

    def __init__(self, tokenizer: Tokenizer, stop_sequence: StopSequence) -> None:
        self._tokenizer = tokenizer
        self._stop_sequence = stop_sequence
        self._requests: dict[str, _Request] = {}

    def add(self, request: EngineRequest) -> None:
        """Before the core gets the request, so that its first output is known."""
        sampling = request.sampling
        self._requests[request.request_id] = _Request(request, max(sampling.n, sampling.best_of or 1))

    def forget(self, request_id: str) -> None:
        """The caller left; later outputs of the request are dropped."""
        self._requests.pop(request_id, None)

    def process(self, output: CoreOutput) -> list[Delta | EngineError]:
        """What the request's stream gets for one output of the core; the last delta has `last`."""
        state = self._requests.get(output.request_id)
        if state is None:
            return []
        state.engine_us = max(state.engine_us, output.engine_us)
        if output.error is not None:
            return self._failed(state, output)
        sequence = state.sequences.get(output.index)
        if sequence is None:
            sequence = state.sequences[output.index] = self._new_sequence(state.request.sampling)
        if sequence.done:
            return []
        delta = self._delta(state, sequence, output)
        if delta is None:
            return []
        if delta.finish_reason is not None:
            sequence.done = True
            state.num_done += 1
        finished = state.num_done == state.num_sequences
        if state.ranks:
            sequence.kept.append(delta)
            deltas = self._best(state) if finished else []
        else:
            deltas = [delta]
        if finished:
            deltas[-1].last = True
            deltas[-1].engine_us = state.engine_us
            self.forget(output.request_id)
        return list(deltas)

    def _new_sequence(self, sampling: SamplingParams) -> _Sequence:
        return _Sequence(
            IncrementalDetokenizer(self._tokenizer, skip_special_tokens=sampling.skip_special_tokens),
            _stop_finder(sampling),
        )

    def _failed(self, state: _Request, output: CoreOutput) -> list[Delta | EngineError]:
        self.forget(output.request_id)
        if not output.request_done:
            for index in range(state.num_sequences):
                self._stop_sequence(output.request_id, index)
        return [RequestFailed(output.error or "the engine failed")]

    def _delta(self, state: _Request, sequence: _Sequence, output: CoreOutput) -> Delta | None:
        """None when there is nothing to say yet (a prompt's scores are still being collected)."""
        sampling = state.request.sampling
        state.prompt_scores.extend(output.prompt_scores or ())
        used, text, hit = self._text(sequence, output, sampling)
        finish_reason, stop_reason = output.finish_reason, output.stop_reason
        if hit is not None:
            if finish_reason is None:
                self._stop_sequence(output.request_id, output.index)
            finish_reason, stop_reason = FinishReason.STOP, hit
        if not used and finish_reason is None:
            return None
        sequence.completion_tokens += used
        scores = output.scores[:used] if output.scores else None
        sequence.cumulative_logprob += sum(score.logprob for score in scores or ())
        delta = Delta(
            index=output.index,
            text=text,
            token_ids=output.token_ids[:used],
            prompt_tokens=output.prompt_tokens,
            cached_tokens=output.cached_tokens,
            completion_tokens=sequence.completion_tokens,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
        )
        if scores is not None and sampling.logprobs is not None:
            delta.logprobs = [self._logprob(score) for score in scores]
        if sampling.prompt_logprobs is not None and not state.prompt_sent:
            # The first prompt token has no predecessor, so no probability.
            delta.prompt_logprobs = [None, *map(self._logprob, state.prompt_scores)]
            state.prompt_sent = True
        return delta

    def _text(self, sequence: _Sequence, output: CoreOutput, sampling: SamplingParams) -> tuple[int, str, str | None]:
        """How many of the tokens count, the text that may leave, the stop string that was found.

        Token by token, because a stop string ends the sequence at the token that completes it. min_tokens holds stop
        strings off as it holds stop ids off. A stop token's or eos's own text is not part of the answer.
        """
        pieces: list[str] = []
        for used, token_id in enumerate(output.token_ids, start=1):
            last = used == len(output.token_ids)
            if output.ends_by_token and last and not sampling.include_stop_str_in_output:
                break
            piece = sequence.detokenizer.push((token_id,))
            counts = sequence.completion_tokens + used > sampling.min_tokens
            pieces.append(sequence.stops.push(piece, counts=counts))
            if sequence.stops.found is not None:
                return used, "".join(pieces), sequence.stops.found
        if output.finish_reason is not None:
            pieces.append(sequence.stops.push(sequence.detokenizer.flush()))
            pieces.append(sequence.stops.flush())
        return len(output.token_ids), "".join(pieces), sequence.stops.found

    def _logprob(self, score: TokenScore) -> TokenLogprob:
        top = tuple(
            self._token(token_id, logprob, rank)
            for rank, (token_id, logprob) in enumerate(zip(score.top_ids, score.top_logprobs, strict=True), start=1)
        )
        return self._token(score.token_id, score.logprob, score.rank, top)

    def _token(
        self, token_id: int, logprob: float, rank: int | None, top: tuple[TokenLogprob, ...] = ()
    ) -> TokenLogprob:
        raw = self._tokenizer.token_bytes(token_id)
        return TokenLogprob(token_id, raw.decode("utf-8", "replace"), raw, logprob, rank, top)

    def _best(self, state: _Request) -> list[Delta]:
        """The n sequences with the highest mean log-probability, each as one delta, numbered from 0."""
        ranked = sorted(
            state.sequences.values(), key=lambda s: s.cumulative_logprob / max(1, s.completion_tokens), reverse=True
        )
        return [_joined(sequence.kept, index) for index, sequence in enumerate(ranked[: state.request.sampling.n])]


def _joined(deltas: list[Delta], index: int) -> Delta:
    last = deltas[-1]
    logprobs = [item for delta in deltas for item in delta.logprobs or ()]
    return Delta(
        index=index,
        text="".join(delta.text for delta in deltas),
        token_ids=[token_id for delta in deltas for token_id in delta.token_ids],
        prompt_tokens=last.prompt_tokens,
        cached_tokens=last.cached_tokens,
        completion_tokens=last.completion_tokens,
        logprobs=logprobs or None,
        prompt_logprobs=next((d.prompt_logprobs for d in deltas if d.prompt_logprobs is not None), None),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
    )


def _stop_finder(sampling: SamplingParams) -> StopFinder:
    include = sampling.include_stop_str_in_output
    if sampling.unstopped is None or not sampling.stop:
        return StopFinder(sampling.stop, include=include)
    return AnswerStopFinder(sampling.stop, sampling.unstopped, include=include)

"""Tokenizers rebuilt from GGUF metadata: how text is cut, which pieces join first, what is a control token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from engine.errors import ModelLoadError
from engine.gguf_tokenizer import TokenType, write_tokenizer
from engine.tokenizer import Tokenizer

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def _bpe(pre: str, **extra: Any) -> dict[str, Any]:
    """Every byte, and the merges of a few pairs."""
    pairs = ["ab", "12", "Ġa", "23", "aB"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*ALPHABET, *pairs, "<|end|>", "<tool>"],
        "tokenizer.ggml.token_type": [1] * (len(ALPHABET) + len(pairs)) + [TokenType.CONTROL, TokenType.USER_DEFINED],
        "tokenizer.ggml.merges": [f"{p[0]} {p[1]}" for p in pairs],
        **extra,
    }


def _sentencepiece(**extra: Any) -> dict[str, Any]:
    words = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "c", "ab", "bc", "▁a"]
    scores = [0.0] * 259 + [-9.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256, *[TokenType.NORMAL] * 7]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **extra,
    }


def _pieces(metadata: dict[str, Any], folder: Path, text: str, **options: Any) -> list[str | None]:
    write_tokenizer(metadata, folder)
    tokenizer = Tokenizer.from_folder(folder)
    return [tokenizer.id_to_token(i) for i in tokenizer.encode(text, **options)]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("smollm", "x1234", ["x", "1", "2", "3", "4"]),  # every digit alone
        ("qwen2", "x1234", ["x", "1", "2", "3", "4"]),
        ("tekken", "x1234", ["x", "1", "2", "3", "4"]),
        ("llama-bpe", "x1234", ["x", "12", "3", "4"]),  # three digits, then the rest
        ("gpt-4o", "x1234", ["x", "12", "3", "4"]),
        ("default", "x1234", ["x", "12", "3", "4"]),
        ("default", "x0123", ["x", "0", "12", "3"]),
        ("llama-bpe", "x0123", ["x", "0", "12", "3"]),
        ("gpt-4o", "aB", ["a", "B"]),  # a change of case cuts
        ("llama-bpe", "aB", ["aB"]),
        ("default", " a", ["Ġa"]),
    ],
)
def test_text_is_cut_as_the_family_cuts_it(tmp_path: Path, pre: str, text: str, expected: list[str]) -> None:
    assert _pieces(_bpe(pre), tmp_path, text) == expected


def test_control_tokens_are_special_and_user_defined_ones_are_words(tmp_path: Path) -> None:
    assert "<|end|>" not in _pieces(_bpe("default"), tmp_path, "<|end|>")
    assert _pieces(_bpe("default"), tmp_path, "<|end|>", allow_special=True) == ["<|end|>"]
    assert _pieces(_bpe("default"), tmp_path, "a<tool>b") == ["a", "<tool>", "b"]


def test_sentencepiece_joins_the_best_scored_piece_first(tmp_path: Path) -> None:
    # "bc" (-1) beats "ab" (-2), which beats "▁a" (-3)
    assert _pieces(_sentencepiece(), tmp_path, "abc", add_bos=False) == ["▁a", "bc"]
    assert _pieces(_sentencepiece(), tmp_path, "ab", add_bos=False) == ["▁", "ab"]


@pytest.mark.parametrize(("prefix", "expected"), [(True, ["▁a", "▁", "ab"]), (False, ["a", "▁", "ab"])])
def test_the_space_before_a_text_follows_the_file(tmp_path: Path, prefix: bool, expected: list[str]) -> None:
    metadata = _sentencepiece(**{"tokenizer.ggml.add_space_prefix": prefix})
    assert _pieces(metadata, tmp_path, "a ab", add_bos=False) == expected


def test_unknown_characters_fall_back_to_bytes_and_come_back(tmp_path: Path) -> None:
    assert _pieces(_sentencepiece(), tmp_path, "é", add_bos=False) == ["▁", "<0xC3>", "<0xA9>"]
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.decode(tokenizer.encode("a é ab", add_bos=False)) == "a é ab"


@pytest.mark.parametrize(("flag", "expected"), [(None, True), (True, True), (False, False)])
def test_bos_follows_the_file_and_sentencepiece_has_it_by_default(
    tmp_path: Path, flag: bool | None, expected: bool
) -> None:
    extra = {} if flag is None else {"tokenizer.ggml.add_bos_token": flag}
    write_tokenizer(_sentencepiece(**extra), tmp_path)
    assert Tokenizer.from_folder(tmp_path).adds_bos is expected


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, r"lacks 'tokenizer\.ggml\.tokens'"),
        (_bpe("no-such-pre"), "pre-tokenizer 'no-such-pre' is not supported"),
        (_bpe("default") | {"tokenizer.ggml.model": "bert"}, "tokenizer model 'bert' is not supported"),
        (_bpe("default") | {"tokenizer.ggml.token_type": [1]}, "tokens but 1 token types"),
        (_sentencepiece() | {"tokenizer.ggml.scores": [0.0]}, r"tokens but 1 'tokenizer\.ggml\.scores'"),
    ],
)
def test_a_vocabulary_that_cannot_be_read_is_named(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        write_tokenizer(metadata, tmp_path)

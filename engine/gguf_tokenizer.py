"""tokenizer.json, tokenizer_config.json and the chat template out of a GGUF file's metadata.

Two kinds of vocabulary exist: byte-level BPE ("gpt2", with its merges in the file) and SentencePiece ("llama", with
scores only, from which the merges are derived as transformers does).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from engine.errors import ModelLoadError


class TokenType(IntEnum):
    """llama.cpp's token classes (`tokenizer.ggml.token_type`)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SLASH_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# How text is cut before the merges, by `tokenizer.ggml.pre`; each is the Split pattern of the family's tokenizer.json.
_SPLIT_PATTERNS = {
    "llama-bpe": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}",
    "qwen2": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}",
    "tekken": (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASH_TAIL}"
    ),
    "gpt-4o": (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_SLASH_TAIL}"
    ),
}
_SPLIT_ALIASES = {"llama-v3": "llama-bpe", "llama3": "llama-bpe", "deepseek-r1-qwen": "qwen2", "dbrx": "llama-bpe"}


def write_tokenizer(metadata: Mapping[str, Any], folder: Path) -> None:
    """Writes tokenizer.json, tokenizer_config.json and, where the file has one, chat_template.jinja into `folder`.

    `metadata` maps GGUF keys to plain values. Raises: ModelLoadError naming the key or the kind not supported.
    """
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens") or []
    if not tokens:
        raise ModelLoadError("the GGUF file lacks 'tokenizer.ggml.tokens': it holds no vocabulary")
    types: list[int] = metadata.get("tokenizer.ggml.token_type") or [TokenType.NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise ModelLoadError(f"the GGUF file has {len(tokens)} tokens but {len(types)} token types")
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _byte_level_bpe(metadata, tokens)
    elif kind == "llama":
        tokenizer = _sentencepiece_bpe(metadata, tokens, types)
    else:
        raise ModelLoadError(f"GGUF tokenizer model {kind!r} is not supported, only 'gpt2' and 'llama'")
    _add_special_tokens(tokenizer, tokens, types)
    _add_bos(tokenizer, metadata, tokens, default=kind == "llama")
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_config(metadata, tokens, folder, default_bos=kind == "llama")


def _byte_level_bpe(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges") or []]
    pre = str(metadata.get("tokenizer.ggml.pre") or "default")
    pre = _SPLIT_ALIASES.get(pre, pre)
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=False, ignore_merges=pre == "llama-bpe"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in _SPLIT_PATTERNS:
        split = pre_tokenizers.Split(Regex(_SPLIT_PATTERNS[pre]), behavior="isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    elif pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    elif pre in ("default", "gpt-2"):
        tokenizer.pre_tokenizer = byte_level
    else:
        known = sorted([*_SPLIT_PATTERNS, *_SPLIT_ALIASES, "smollm", "gpt-2", "default"])
        raise ModelLoadError(f"GGUF pre-tokenizer {pre!r} is not supported, only {', '.join(known)}")
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece_bpe(metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> Tokenizer:
    scores: list[float] = metadata.get("tokenizer.ggml.scores") or []
    if len(scores) != len(tokens):
        raise ModelLoadError(f"the GGUF file has {len(tokens)} tokens but {len(scores)} 'tokenizer.ggml.scores'")
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=_merges_from_scores(tokens, types, scores),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    steps: list[Any] = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    tail: list[Any] = [decoders.Strip(content=" ", left=1)] if prefix else []
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *tail])
    return tokenizer


def _merges_from_scores(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, best score first: SentencePiece's rule as a merge list.

    Order among equals follows transformers' `generate_merges`, so both make the same tokens.
    """
    mergeable = {
        token: i
        for i, token in enumerate(tokens)
        if types[i] in (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)
    }
    merges: list[tuple[float, int, int, str, str]] = []
    for piece, i in mergeable.items():
        local = []
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in mergeable and right in mergeable:
                local.append((mergeable[left], mergeable[right], left, right))
        local.sort()
        merges.extend((scores[i], len(left), len(right), left, right) for _, _, left, right in local)
    merges.sort(key=lambda merge: merge[:3], reverse=True)
    return [(left, right) for *_, left, right in merges]


def _add_special_tokens(tokenizer: Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    special = [AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types, strict=True) if k == 3]
    plain = [AddedToken(t, special=False, normalized=False) for t, k in zip(tokens, types, strict=True) if k == 4]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)


def _add_bos(tokenizer: Tokenizer, metadata: Mapping[str, Any], tokens: Sequence[str], *, default: bool) -> None:
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if bos is None or not metadata.get("tokenizer.ggml.add_bos_token", default):
        return
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{tokens[bos]} $A", pair=f"{tokens[bos]} $A $B", special_tokens=[(tokens[bos], bos)]
    )


def _write_config(metadata: Mapping[str, Any], tokens: Sequence[str], folder: Path, *, default_bos: bool) -> None:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bool(metadata.get("tokenizer.ggml.add_bos_token", default_bos)),
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None and 0 <= token_id < len(tokens):
            config[f"{name}_token"] = tokens[token_id]
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )
    template = metadata.get("tokenizer.chat_template")
    if template:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")

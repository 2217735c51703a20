"""`Tokenizer`: text to ids and back over the `tokenizers` library. No torch.

Text from outside never becomes a control id: `encode` reads special tokens as plain text unless `allow_special`, and
`encode_with_specials` (the chat template's way in) takes only those that stand outside the caller's own words.

Ids become text through their bytes, not through the library's decoder, so that a stream and a whole answer agree by
construction: `decode(ids)` is the joined bytes read as UTF-8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as RustTokenizer

from engine.errors import ModelLoadError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

LOCKED_CHARS = 2048  # about 0.1 ms of tokenising
PROBE = "\ue0fe"  # private use: stands for the caller's words in a template's own text


class Tokenizer:
    """Thread-safe after construction. `bos_token_id` is None where the model has none."""

    def __init__(self, spec: str, config: Mapping[str, Any]) -> None:
        """Args: spec the text of tokenizer.json; config the object of tokenizer_config.json."""
        parsed = json.loads(spec)
        self._tokenizer = _plain_tokenizer(parsed, spec)
        # Llama 2's newer files put a space before the first piece of a text only; later pieces get their own tokenizer.
        self._inner_tokenizer = _without_first_prefix(parsed) or self._tokenizer
        self._decoder_kinds = _decoder_kinds(parsed.get("decoder"))
        self._strips_first_space = "Strip" in self._decoder_kinds or _prepends_space(parsed)
        self._specials = [t for t in parsed.get("added_tokens") or [] if t.get("special") and t.get("content")]
        self._special_ids = {str(t["content"]): int(t["id"]) for t in self._specials}
        self.special_ids: frozenset[int] = frozenset(self._special_ids.values())
        self.bos_token = _token_text(config.get("bos_token"))
        self.eos_token = _token_text(config.get("eos_token"))
        self.special_tokens_map = {
            key: text for key, value in config.items() if key.endswith("_token") and (text := _token_text(value))
        }
        self.bos_token_id = self._id_of(self.bos_token)
        self.eos_token_id = self._id_of(self.eos_token)
        self._adds_bos = self._finds_bos(parsed, config)
        self._kept: dict[str, list[int]] = {}

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Raises: ModelLoadError when tokenizer.json is missing or of a kind that is not supported."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelLoadError(f"{folder} holds no tokenizer.json: the model cannot read text")
        config_path = folder / "tokenizer_config.json"
        try:
            config = json.loads(config_path.read_text(encoding="utf-8")) if config_path.is_file() else {}
            return cls(path.read_text(encoding="utf-8"), config)
        except ModelLoadError as exc:
            raise ModelLoadError(f"{path}: {exc}") from exc
        except Exception as exc:  # the Rust library raises bare Exception for a bad file
            raise ModelLoadError(f"{path} is not a usable tokenizer: {exc}") from exc

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id that has a token."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def adds_bos(self) -> bool:
        """Whether plain prompts of this model start with BOS."""
        return self._adds_bos

    @property
    def spec(self) -> str:
        """tokenizer.json as text, for libraries that want it (structured output)."""
        return self._tokenizer.to_str()

    def encode(self, text: str, *, add_bos: bool = True, allow_special: bool = False) -> list[int]:
        """Ids of a plain prompt.

        `add_bos` puts BOS first where the model wants it, never twice: a text that starts with BOS's own spelling
        counts as having it. `allow_special` reads special tokens in the text as control ids (a trusted, templated
        prompt); the default reads them as the letters they are written with.
        """
        prefix: list[int] = []
        if add_bos and self._adds_bos and self.bos_token_id is not None and self.bos_token:
            prefix = [self.bos_token_id]
            text = text.removeprefix(self.bos_token)
        if allow_special:
            return prefix + self.encode_with_specials(text, {})
        return prefix + _ids(self._tokenizer, text)

    def keep_pieces(self, texts: Iterable[str]) -> None:
        """Remembers the ids of what stands between two special tokens of `texts`, but for pieces that hold `PROBE`: a
        template repeats the same few pieces around every message. Callers' words are never kept."""
        for text in texts:
            for piece, _ in self._split_at_specials(text)[1:]:
                if piece and PROBE not in piece:
                    self._kept[piece] = _ids(self._inner_tokenizer, piece)

    def encode_with_specials(self, text: str, literals: Mapping[str, str]) -> list[int]:
        """Ids of a templated text: special tokens become control ids, except inside the caller's words.

        `literals` maps single placeholder characters to the caller's text they stand for; that text is put back after
        the special tokens were found, so it can hold none. Everything between two special tokens is encoded as one
        piece, exactly as the library does, so merges and spaces at the borders of the caller's words are unchanged.
        """
        table = str.maketrans(dict(literals))
        ids: list[int] = []
        pieces = self._split_at_specials(text)
        for position, (piece, special_id) in enumerate(pieces):
            if position and (kept := self._kept.get(piece)) is not None:
                ids.extend(kept)
            elif piece:
                tokenizer = self._tokenizer if position == 0 else self._inner_tokenizer
                ids.extend(_ids(tokenizer, piece.translate(table) if table else piece))
            if special_id is not None:
                ids.append(special_id)
        return ids

    @property
    def special_spellings(self) -> tuple[str, ...]:
        """How the special tokens are written ("<|im_end|>")."""
        return tuple(self._special_ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of whole ids from a text's start. Bytes that are no UTF-8 become U+FFFD; unknown ids are empty."""
        text = self.decode_bytes(token_ids, skip_special_tokens=skip_special_tokens).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._strips_first_space else text

    def decode_bytes(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> bytes:
        """The exact bytes of ids, as they stand inside a text (a leading space is kept)."""
        table = self._bytes_of_ids
        hidden = self.special_ids if skip_special_tokens else frozenset[int]()
        return b"".join(table[i] for i in token_ids if i not in hidden and 0 <= i < len(table))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for: a special token's spelling, empty for an id without a token."""
        table = self._bytes_of_ids
        return table[token_id] if 0 <= token_id < len(table) else b""

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling ("Ġthe", "▁the"), None for an id without a token."""
        return self._tokenizer.id_to_token(token_id) if token_id >= 0 else None

    def token_to_id(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    @cached_property
    def _bytes_of_ids(self) -> list[bytes]:
        table = [b""] * self.vocab_size
        to_bytes = self._byte_level_bytes if "ByteLevel" in self._decoder_kinds else self._sentencepiece_bytes
        for token, token_id in self._tokenizer.get_vocab(with_added_tokens=True).items():
            table[token_id] = token.encode() if token_id in self.special_ids else to_bytes(token)
        return table

    @staticmethod
    def _byte_level_bytes(token: str) -> bytes:
        try:
            return bytes(_BYTE_OF_CHAR[char] for char in token)
        except KeyError:  # an added token written in plain letters
            return token.encode()

    @staticmethod
    def _sentencepiece_bytes(token: str) -> bytes:
        byte = _BYTE_TOKEN.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()

    def _id_of(self, token: str | None) -> int | None:
        return None if token is None else self._tokenizer.token_to_id(token)

    def _finds_bos(self, parsed: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
        """The post-processor decides where there is one; else tokenizer_config's `add_bos_token`."""
        if self.bos_token_id is None:
            return False
        if parsed.get("post_processor"):
            ids = self._tokenizer.encode("a", add_special_tokens=True).ids
            if ids and ids[0] == self.bos_token_id:
                return True
        return bool(config.get("add_bos_token", False))

    def _split_at_specials(self, text: str) -> list[tuple[str, int | None]]:
        """(text before, special id) pairs; the last pair has no id. `lstrip`/`rstrip` tokens eat the spaces beside."""
        pattern = self._special_regex
        if pattern is None:
            return [(text, None)]
        pieces: list[tuple[str, int | None]] = []
        start = 0
        for match in pattern.finditer(text):
            spelling = match[0] if match[0] in self._special_ids else match[0].strip()
            pieces.append((text[start : match.start()], self._special_ids[spelling]))
            start = match.end()
        pieces.append((text[start:], None))
        return pieces

    @cached_property
    def _special_regex(self) -> re.Pattern[str] | None:
        if not self._specials:
            return None
        parts = []
        for token in sorted(self._specials, key=lambda t: len(t["content"]), reverse=True):
            left = r"\s*" if token.get("lstrip") else ""
            right = r"\s*" if token.get("rstrip") else ""
            parts.append(left + re.escape(token["content"]) + right)
        return re.compile("|".join(parts))


def _ids(tokenizer: RustTokenizer, text: str) -> list[int]:
    """A long text goes by the call for batches: only that one lets go of the interpreter lock while it works.

    By the other a thread that tokenised 400 KB let no other thread run for 0.4 s, the event loop's neither.
    """
    if len(text) <= LOCKED_CHARS:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)
    [encoded] = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    return list(encoded.ids)


def _plain_tokenizer(parsed: Mapping[str, Any], spec: str | None = None) -> RustTokenizer:
    """The library's tokenizer with truncation and padding off, reading special tokens in text as plain text."""
    tokenizer = RustTokenizer.from_str(json.dumps(parsed) if spec is None else spec)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def _without_first_prefix(parsed: Mapping[str, Any]) -> RustTokenizer | None:
    """A copy whose Metaspace never prepends, where the original does so at a text's start only."""
    pre = parsed.get("pre_tokenizer") or {}
    steps = pre.get("pretokenizers") if pre.get("type") == "Sequence" else [pre]
    if not any(s.get("type") == "Metaspace" and s.get("prepend_scheme") == "first" for s in steps or []):
        return None
    changed = [{**s, "prepend_scheme": "never"} if s.get("type") == "Metaspace" else s for s in steps or []]
    new_pre = {**pre, "pretokenizers": changed} if pre.get("type") == "Sequence" else changed[0]
    return _plain_tokenizer({**parsed, "pre_tokenizer": new_pre})


def _prepends_space(parsed: Mapping[str, Any]) -> bool:
    decoder = parsed.get("decoder") or {}
    steps = decoder.get("decoders") if decoder.get("type") == "Sequence" else [decoder]
    return any(s.get("type") == "Metaspace" and s.get("prepend_scheme", "always") != "never" for s in steps or [])


def _decoder_kinds(decoder: Mapping[str, Any] | None) -> frozenset[str]:
    """Raises: ModelLoadError for a decoder whose tokens do not stand for fixed bytes (WordPiece, CTC)."""
    if not decoder:
        raise ModelLoadError("the tokenizer has no decoder: its tokens cannot be turned into text")
    steps = decoder.get("decoders") if decoder.get("type") == "Sequence" else [decoder]
    kinds = frozenset(str(step.get("type")) for step in steps or [])
    unknown = kinds - {"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}
    if unknown:
        raise ModelLoadError(f"tokenizer decoder {sorted(unknown)[0]!r} is not supported")
    return kinds


def _token_text(value: object) -> str | None:
    """tokenizer_config.json spells a token as a string or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _byte_of_char() -> dict[str, int]:
    """GPT-2's printable spelling of bytes: printable Latin-1 stands for itself, the rest for U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in printable}
    others = (b for b in range(256) if b not in set(printable))
    return table | {chr(0x100 + n): b for n, b in enumerate(others)}


_BYTE_OF_CHAR = _byte_of_char()

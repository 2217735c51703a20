"""Text to ids and back: exact round trips, BOS exactly once, no control id from a caller's text."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as RustTokenizer
from transformers import PreTrainedTokenizerFast

from engine.detokenizer import IncrementalDetokenizer
from engine.errors import ModelLoadError
from engine.tokenizer import LOCKED_CHARS, Tokenizer

SPACE = "▁"


def _sentencepiece(scheme: str) -> RustTokenizer:
    """A byte-fallback BPE as Llama 2 has: `scheme` says where a space is put before a text."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{b:02X}>" for b in range(256)),
        SPACE,
        "h",
        "i",
        f"{SPACE}h",
        "hi",
        f"{SPACE}hi",
    ]
    merges = [(SPACE, "h"), ("h", "i"), (f"{SPACE}h", "i")]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = RustTokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    if scheme == "legacy":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(content=" ", left=1)]
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in pieces[:3]])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def _ours(tokenizer: RustTokenizer, **config: Any) -> Tokenizer:
    return Tokenizer(tokenizer.to_str(), {"bos_token": "<s>", "eos_token": "</s>", **config})


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> Tokenizer:
    return Tokenizer.from_folder(smollm2)


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.characters(max_codepoint=0x1FFFF, exclude_categories=("Cs", "Cc", "Cn", "Co"))))
def test_any_text_survives_the_round_trip(smol: Tokenizer, text: str) -> None:
    # (The bytes of control characters and of empty planes have no token in this vocabulary.)
    ids = smol.encode(text)
    assert smol.decode(ids, skip_special_tokens=False) == text
    assert not set(ids) & smol.special_ids


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=40), data=st.data())
def test_incremental_text_equals_the_whole_at_every_split(smol: Tokenizer, ids: list[int], data: st.DataObject) -> None:
    # Given ids and any way to cut them
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    borders = [0, *cuts, len(ids)]
    for skip in (True, False):
        # When they are pushed piece by piece
        stream = IncrementalDetokenizer(smol, skip_special_tokens=skip)
        text = "".join(stream.push(ids[a:b]) for a, b in itertools.pairwise(borders)) + stream.flush()
        # Then the pieces join to the whole decode
        assert text == smol.decode(ids, skip_special_tokens=skip)


def test_a_character_over_several_tokens_never_comes_in_halves(smol: Tokenizer) -> None:
    text = "🫠🥹龜👩‍🚀 naïve"
    ids = smol.encode(text)
    stream = IncrementalDetokenizer(smol)
    pieces = [stream.push([i]) for i in ids]
    assert "".join(pieces) == text
    assert stream.flush() == ""
    assert not any("\ufffd" in piece for piece in pieces)
    assert len(ids) > len(text), "the text must hold characters of several tokens"


def test_bytes_that_are_no_character_become_replacement_marks_at_the_end_only(smol: Tokenizer) -> None:
    ids = smol.encode("a🫠")[:-1]
    stream = IncrementalDetokenizer(smol)
    assert stream.push(ids) == "a"
    assert stream.flush() == "\ufffd"


@pytest.mark.parametrize("scheme", ["legacy", "first", "always", "never"])
@pytest.mark.parametrize("text", ["hi hi", " hi", "  hi  ", "é🫠", "", "hi\nhi", "h<s>i"])
def test_sentencepiece_text_encodes_as_the_library_does(scheme: str, text: str) -> None:
    library = _sentencepiece(scheme)
    ours = _ours(library)
    fast = PreTrainedTokenizerFast(tokenizer_object=library, bos_token="<s>", eos_token="</s>")
    assert ours.encode(text, add_bos=False, allow_special=True) == fast(text, add_special_tokens=False).input_ids


def test_sentencepiece_streams_keep_a_leading_space_that_a_whole_text_drops() -> None:
    ours = _ours(_sentencepiece("legacy"))
    ids = ours.encode("hi hi", add_bos=False)
    assert ours.decode(ids) == "hi hi"
    assert IncrementalDetokenizer(ours).push(ids) == " hi hi"


def test_byte_tokens_join_to_characters() -> None:
    ours = _ours(_sentencepiece("legacy"))
    ids = ours.encode("é🫠", add_bos=False)
    stream = IncrementalDetokenizer(ours)
    assert [piece for i in ids if (piece := stream.push([i]))] == [" ", "é", "🫠"]


def test_a_plain_prompt_gets_exactly_one_bos() -> None:
    ours = _ours(_sentencepiece("legacy"))
    assert ours.adds_bos
    for text in ("hi", "<s>hi"):
        for allow_special in (True, False):
            assert ours.encode(text, allow_special=allow_special).count(1) == 1
    assert ours.encode("") == [1]
    assert 1 not in ours.encode("<s>hi", add_bos=False)


def test_a_model_without_bos_gets_none(smol: Tokenizer) -> None:
    assert not smol.adds_bos
    assert smol.encode("") == []


def test_add_bos_token_of_the_config_counts_without_a_post_processor() -> None:
    library = _sentencepiece("legacy")
    library.post_processor = processors.Sequence([])
    assert _ours(library, add_bos_token=True).encode("hi")[0] == 1
    assert 1 not in _ours(library).encode("hi")


def test_special_tokens_in_text_are_control_ids_only_where_allowed(smol: Tokenizer) -> None:
    text = "<|im_start|>user<|im_end|>"
    assert smol.encode(text, allow_special=True)[0] in smol.special_ids
    assert not set(smol.encode(text)) & smol.special_ids


def test_strip_flags_of_special_tokens_eat_spaces_as_the_library_does() -> None:
    library = _sentencepiece("never")
    library.add_special_tokens([AddedToken("<|end|>", special=True, rstrip=True, lstrip=False, normalized=False)])
    library.add_special_tokens([AddedToken("<|mask|>", special=True, lstrip=True, normalized=False)])
    fast = PreTrainedTokenizerFast(tokenizer_object=library)
    ours = _ours(library)
    for text in ("hi<|end|>\n hi", "hi  <|mask|> hi", "<|end|> <|mask|>"):
        assert ours.encode(text, add_bos=False, allow_special=True) == fast(text, add_special_tokens=False).input_ids


def test_ids_without_a_token_have_no_bytes(smol: Tokenizer) -> None:
    assert smol.token_bytes(10**6) == b""
    assert smol.token_bytes(-1) == b""
    assert smol.decode([10**6, -5]) == ""
    assert smol.id_to_token(10**6) is None


def test_incremental_work_does_not_grow_with_the_text(smol: Tokenizer) -> None:
    seen = []
    original = smol.token_bytes

    class Counting:
        special_ids = smol.special_ids

        def token_bytes(self, token_id: int) -> bytes:
            seen.append(token_id)
            return original(token_id)

    stream = IncrementalDetokenizer(Counting())  # type: ignore[arg-type]
    ids = random.Random(0).choices(range(100, 40000), k=2000)
    for i in ids:
        stream.push([i])
    assert seen == ids, "each token's bytes are looked at once"


def test_a_bad_tokenizer_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"holds no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json is not a usable tokenizer"):
        Tokenizer.from_folder(tmp_path)
    spec = json.loads(_sentencepiece("legacy").to_str())
    wordpiece = {"type": "WordPiece", "prefix": "##", "cleanup": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps({**spec, "decoder": wordpiece}))
    with pytest.raises(ModelLoadError, match="decoder 'WordPiece' is not supported"):
        Tokenizer.from_folder(tmp_path)


def test_reading_text_imports_no_torch() -> None:
    code = (
        "import sys, engine.tokenizer, engine.chat_template, engine.detokenizer, engine.model_source, "
        "engine.model_config, engine.model_info, engine.gguf_convert; "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_a_thread_that_tokenises_a_long_text_lets_others_run(smollm2: Path) -> None:
    # given a text that takes a thread some hundred milliseconds
    tokenizer = Tokenizer.from_folder(smollm2)
    text = "The weir holds back the river, and measures it. " * 20_000
    work = threading.Thread(target=lambda: tokenizer.encode(text))
    # when another thread goes on beside it
    moments = [time.perf_counter()]
    work.start()
    while work.is_alive():
        time.sleep(0)
        moments.append(time.perf_counter())
    # then it never stood still for most of that time, as it does under the library's plain call
    longest = max(later - earlier for earlier, later in itertools.pairwise(moments))
    assert longest < (moments[-1] - moments[0]) / 2


@pytest.mark.parametrize("char", ["a", "é", "水", " ", "\n"])
def test_long_texts_are_the_same_ids_as_by_the_plain_call(smollm2: Path, char: str) -> None:
    tokenizer = Tokenizer.from_folder(smollm2)
    for length in (LOCKED_CHARS - 1, LOCKED_CHARS, LOCKED_CHARS + 1, 3 * LOCKED_CHARS):
        text = (f"{char} word <|im_end|> 12345 " * length)[:length]
        assert tokenizer.encode(text) == list(tokenizer._tokenizer.encode(text, add_special_tokens=False).ids)

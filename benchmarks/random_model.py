"""Writes a model folder of a shape: config.json, a tokenizer of as many tokens, random safetensors, in files of 2 GB.

    python -m benchmarks.random_model FOLDER                        # Llama-3-8B's shape: 16 GB
    python -m benchmarks.random_model FOLDER --config config.json   # another
    python -m benchmarks.random_model FOLDER --no-weights           # for --load-format dummy

For starts from disk, and for serving a shape through the whole gateway: prompts go in as ids, and what comes out has
text, though no meaning.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import workloads  # noqa: E402

FILE_BYTES = 2 << 30


def write_config(folder: Path, shape: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape))


def write_tokenizer(folder: Path, shape: dict[str, Any]) -> None:
    """A byte-level BPE without merges: the 256 bytes, then made-up words; BOS and EOS where the config has them."""
    size = int(shape["vocab_size"])
    specials = {int(shape["bos_token_id"]): "<|begin|>", int(shape["eos_token_id"]): "<|end|>"}
    tokens = [*_byte_characters(), *(f"Ġ{_letters(number)}" for number in range(size - 256))][:size]
    vocab = {token: i for i, token in enumerate(tokens) if i not in specials}
    added = [
        {"id": i, "content": token, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for i, token in sorted(specials.items())
    ]  # fmt: skip
    spec = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    names = {"bos_token": specials[int(shape["bos_token_id"])], "eos_token": specials[int(shape["eos_token_id"])]}
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, "chat_template": template}))


def write_weights(folder: Path, *, device: str = "cpu") -> int:
    """Random numbers for every tensor of the shape in `folder`; returns their bytes."""
    import torch
    from safetensors.torch import save_file

    from engine.loader import DTYPES
    from engine.model_config import load_model_config
    from engine.models.registry import model_class

    config = load_model_config(folder)
    with torch.device("meta"):  # names and shapes alone
        model = model_class(config.architecture)(config)
    dtype = DTYPES[config.dtype]
    parts: list[dict[str, torch.Size]] = [{}]
    sizes = [0]
    for name, slot in model.weight_slots():
        num_bytes = slot.numel() * dtype.itemsize
        if sizes[-1] and sizes[-1] + num_bytes > FILE_BYTES:
            parts.append({})
            sizes.append(0)
        parts[-1][name] = slot.shape
        sizes[-1] += num_bytes
    names: dict[str, str] = {}
    generator = torch.Generator(device).manual_seed(0)
    for number, part in enumerate(parts, start=1):
        file = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        tensors = {
            name: torch.ones(shape, dtype=dtype)
            if name.endswith("norm.weight")
            else torch.empty(shape, dtype=dtype, device=device).normal_(0, 0.02, generator=generator).cpu()
            for name, shape in part.items()
        }
        save_file(tensors, folder / file)
        names.update(dict.fromkeys(part, file))
    index = {"metadata": {"total_size": sum(sizes)}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return sum(sizes)


def _byte_characters() -> list[str]:
    """The 256 characters that byte-level vocabularies write bytes with, in the bytes' order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def _letters(number: int) -> str:
    """Another word for another number: base 26 in letters, three of them at least."""
    word = ""
    while number or len(word) < 3:
        number, digit = divmod(number, 26)
        word = chr(ord("a") + digit) + word
    return word


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--config", type=Path, help="a config.json of another shape; default: Llama-3-8B's")
    parser.add_argument("--device", default="cpu", help="where the numbers are drawn: cuda is faster")
    parser.add_argument("--no-weights", action="store_true")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="weir-model-"))
    shape = json.loads(args.config.read_text()) if args.config else workloads.LLAMA8B
    write_config(folder, shape)
    write_tokenizer(folder, shape)
    started = time.perf_counter()
    num_bytes = 0 if args.no_weights else write_weights(folder, device=args.device)
    print(f"{folder}: {num_bytes / 1e9:.2f} GB of weights in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()

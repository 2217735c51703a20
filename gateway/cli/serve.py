"""`weir serve`: one command from an empty folder to an answering URL."""

from __future__ import annotations

from typing import Any

import click

from gateway.cli.context import CliContext
from gateway.cli.options import setting_options


@click.command("serve")
@click.argument("model", required=False)
@click.option("--demo", is_flag=True, help="Make a tenant with a key and prices, and print how to ask.")
@setting_options(exclude=("model", "data_dir", "database_url", "redis_url"))
@click.pass_obj
def command(obj: CliContext, /, model: str | None, demo: bool, **flags: Any) -> None:
    """Serve MODEL behind the OpenAI API.

    MODEL is a Hugging Face folder, a .gguf file, or smollm2 (packaged; the default). Weir starts its own Redis unless
    --redis-url is given, brings the database to its schema, loads the model and listens. SIGTERM and Ctrl-C drain:
    running requests finish, new ones are refused.

    \b
    weir serve smollm2 --demo
    weir serve ./Llama-3.1-8B-Instruct --max-num-seqs 128 --gpu-memory-utilization 0.9
    """
    settings = obj.with_flags({"model": model, **flags})
    from gateway.server import serve

    serve(settings, demo=demo)

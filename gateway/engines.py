"""Which engines a process has: threads of its own, supervised children, or none (a gateway to upstreams only)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from engine.chat_template import ChatTemplate
from engine.client import EngineClient
from engine.config import EngineConfig
from engine.model_source import resolve_model
from engine.tokenizer import Tokenizer
from engine.types import ModelInfo
from gateway.prompts import EstimatedText, TextModel
from gateway.settings import NO_ENGINE, Settings
from gateway.sockets import short_socket_path

# Upstreams know their own limits; ours must not refuse what theirs would take.
UNBOUNDED_TOKENS = 1 << 24


class Served(msgspec.Struct, frozen=True):
    """A further model: its settings, its running engine, its text side."""

    config: EngineConfig
    engine: EngineClient
    text: TextModel


def make_engine(settings: Settings) -> EngineClient | None:
    """The engine that `engine_mode` asks for; None for the model `none`. Nothing is loaded yet."""
    if settings.engine.model == NO_ENGINE:
        return None
    return _make(settings, settings.engine, "engine.sock")


async def start_further(settings: Settings, stack: AsyncExitStack) -> tuple[Served, ...]:
    """The engines of `models`, one after the other: each sizes its pages by what the ones before left.

    Raises: ModelLoadError.
    """
    started = []
    for number, config in enumerate(settings.models, start=2):
        engine = _make(settings, config, f"engine{number}.sock")
        await engine.start()
        stack.push_async_callback(engine.close)
        text = await asyncio.to_thread(TextModel.from_info, engine.model, template_file=config.chat_template)
        started.append(Served(config, engine, text))
    return tuple(started)


def _make(settings: Settings, config: EngineConfig, socket_name: str) -> EngineClient:
    if _mode(settings) == "child":
        from engine.child_client import ChildClient  # imports no torch: the child does

        return ChildClient(config, short_socket_path(settings.data_path, socket_name))
    from engine.inline_client import InlineClient  # imports torch: only where the engine runs in this process

    return InlineClient(config)


def _mode(settings: Settings) -> str:
    if settings.engine_mode != "auto":
        return settings.engine_mode
    # Asked of the system, not of torch: importing torch here is what `child` is there to avoid.
    on_gpu = settings.engine.device != "cpu" and Path("/dev/nvidiactl").exists()
    return "child" if on_gpu else "inline"


async def counting_text_model(settings: Settings) -> TextModel:
    """A tokenizer to count with where no engine brings one: `--tokenizer`, else the packaged model's.

    Raises: ModelLoadError when neither is there.
    """

    def load() -> TextModel:
        folder = Path(settings.engine.tokenizer) if settings.engine.tokenizer else _packaged(settings)
        tokenizer = Tokenizer.from_folder(folder)
        return TextModel(_counting_info(folder), tokenizer, ChatTemplate.from_folder(folder, tokenizer))

    return await asyncio.to_thread(load)


def for_counting(model: TextModel, *, exact: bool) -> TextModel:
    """The same tokenizer for models served elsewhere, without the local model's context limit.

    Args: exact: it is those models' own (`--tokenizer`), so its chat template counts too. Else it is a guess, and the
    words alone are counted: another model's template would add what the upstream's does not."""
    info = _counting_info(Path(model.info.path))
    return TextModel(info, model.tokenizer, model.template) if exact else EstimatedText(info, model.tokenizer)


def _packaged(settings: Settings) -> Path:
    return resolve_model("smollm2", cache_dir=settings.data_path / "models", dtype="auto")


def _counting_info(folder: Path) -> ModelInfo:
    return ModelInfo(
        name=NO_ENGINE,
        path=str(folder),
        revision="",
        architecture="",
        max_model_len=UNBOUNDED_TOKENS,
        vocab_size=UNBOUNDED_TOKENS,
        logits_width=UNBOUNDED_TOKENS,
        dtype="",
        eos_token_ids=(),
        bos_token_id=None,
        num_parameters=0,
    )

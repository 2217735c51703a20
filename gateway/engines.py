"""Which engine a process has: a thread of its own, a supervised child, or none (a gateway to upstreams only)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine.chat_template import ChatTemplate
from engine.client import EngineClient
from engine.model_source import resolve_model
from engine.tokenizer import Tokenizer
from engine.types import ModelInfo
from gateway.prompts import TextModel
from gateway.settings import Settings
from gateway.sockets import short_socket_path

NO_ENGINE = "none"
# Upstreams know their own limits; ours must not refuse what theirs would take.
UNBOUNDED_TOKENS = 1 << 24


def make_engine(settings: Settings) -> EngineClient | None:
    """The engine that `engine_mode` asks for; None for the model `none`. Nothing is loaded yet."""
    if settings.engine.model == NO_ENGINE:
        return None
    if _mode(settings) == "child":
        from engine.child_client import ChildClient  # imports no torch: the child does

        return ChildClient(settings.engine, short_socket_path(settings.data_path, "engine.sock"))
    from engine.inline_client import InlineClient  # imports torch: only where the engine runs in this process

    return InlineClient(settings.engine)


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


def for_counting(model: TextModel) -> TextModel:
    """The same tokenizer for models served elsewhere, without the local model's context limit."""
    return TextModel(_counting_info(Path(model.info.path)), model.tokenizer, model.template)


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

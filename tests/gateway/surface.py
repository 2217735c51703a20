"""What the tests of tools, responses, messages and batches share."""

from __future__ import annotations

from engine.chat_template import ChatTemplate
from gateway.prompts import TextModel
from tests.gateway.fakes import CHATML, byte_tokenizer, model_info


def roomy_model() -> TextModel:
    """A context that the tools' explanation fits into, byte by byte."""
    tokenizer = byte_tokenizer()
    return TextModel(model_info(max_model_len=4096), tokenizer, ChatTemplate(CHATML, tokenizer))

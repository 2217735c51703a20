"""Runs a model over real KV pages without the scheduler: what the parity tests drive before and beside the engine."""

from __future__ import annotations

import torch

from engine.attention import Attention, AttentionMetadata, KVView, group_layers
from engine.models.base import CausalLM

BLOCK_SIZE = 16


class PagedRun:
    """One sequence's pages and tokens. `feed` appends tokens and returns the logits of every one of them."""

    def __init__(self, model: CausalLM, *, max_tokens: int = 1024) -> None:
        self.model = model
        groups = group_layers(model.attention_specs)
        self.num_pages = -(-max_tokens // BLOCK_SIZE)
        dtype = next(model.parameters()).dtype
        pools = tuple(
            torch.zeros(
                self.num_pages + 1, len(g.layers), 2, g.key.num_kv_heads, BLOCK_SIZE, g.key.head_dim, dtype=dtype
            )
            for g in groups
        )
        self.kv = KVView(specs=model.attention_specs, groups=groups, pools=pools, block_size=BLOCK_SIZE)
        self.length = 0

    def feed(self, token_ids: list[int]) -> torch.Tensor:
        """Logits float32 [len(token_ids), vocab]."""
        count = len(token_ids)
        positions = torch.arange(self.length, self.length + count)
        table = torch.arange(1, self.num_pages + 1, dtype=torch.int32)[None]
        slots = positions + BLOCK_SIZE  # page 0 is the null page
        self.length += count
        groups = len(self.kv.groups)
        meta = AttentionMetadata(
            cu_seqlens_q=torch.tensor([0, count], dtype=torch.int32),
            seq_lens=torch.tensor([self.length], dtype=torch.int32),
            block_tables=(table,) * groups,
            slot_mapping=(slots,) * groups,
            num_decodes=1 if count == 1 else 0,
            max_query_len=count,
            max_seq_len=self.length,
        )
        with torch.inference_mode():
            hidden = self.model(torch.tensor(token_ids), positions, Attention(self.kv, meta))
            return self.model.compute_logits(hidden).float()

    def feed_chunked(self, token_ids: list[int], chunk: int) -> torch.Tensor:
        return torch.cat([self.feed(token_ids[i : i + chunk]) for i in range(0, len(token_ids), chunk)])


def greedy(model: CausalLM, prompt: list[int], num_tokens: int, *, chunk: int = 10**9) -> list[int]:
    """`num_tokens` greedy tokens after `prompt`, prefilled in chunks."""
    run = PagedRun(model, max_tokens=len(prompt) + num_tokens)
    output = [int(run.feed_chunked(prompt, chunk)[-1].argmax())]
    while len(output) < num_tokens:
        output.append(int(run.feed([output[-1]])[-1].argmax()))
    return output

"""What a model's layers and the paged KV cache agree on: layer specs, page groups, a step's metadata, `Attention`.

A model declares one `AttentionSpec` a layer. Layers of one kind (full attention, or one window size with one KV
shape) share a *group*: one pool of pages, one block table a sequence, so that window layers free what left the window.
A model's forward makes `attention = Attention(kv, meta)` and its layers call `attention(layer_index, q, k, v)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernels.cpu_decode import DecodePlan, cpu_decode, plan_decode
from kernels.kv_write import kv_write
from kernels.paged_attention import SharedPrefixes, paged_attention
from kernels.rope_kv_write import rope_kv_write


@dataclass(frozen=True)
class AttentionSpec:
    """What one layer asks of attention. `window` None is full attention, else a token sees the last `window` keys,
    its own among them. `soft_cap` c turns scores s into c*tanh(s/c) before the mask (Gemma 2)."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    soft_cap: float | None = None


class GroupKey(NamedTuple):
    """Layers with the same key share pages."""

    window: int | None
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class GroupSpec:
    """One page group: its key and the model's layer indices in it, ascending."""

    key: GroupKey
    layers: tuple[int, ...]

    def page_elements(self, block_size: int) -> int:
        """Elements of one page: K and V of `block_size` tokens in every layer of the group."""
        return len(self.layers) * 2 * self.key.num_kv_heads * block_size * self.key.head_dim


def group_layers(specs: tuple[AttentionSpec, ...]) -> tuple[GroupSpec, ...]:
    """Groups layers by kind, full attention first, then windows from the widest down (a stable order for plans)."""
    members: dict[GroupKey, list[int]] = {}
    for index, spec in enumerate(specs):
        members.setdefault(GroupKey(spec.window, spec.num_kv_heads, spec.head_dim), []).append(index)
    keys = sorted(members, key=lambda key: (key.window is not None, -(key.window or 0), key.num_kv_heads, key.head_dim))
    return tuple(GroupSpec(key, tuple(members[key])) for key in keys)


@dataclass
class KVView:
    """The device pools as the layers see them.

    pools: one tensor a group, `[num_pages, layers_in_group, 2, num_kv_heads, block_size, head_dim]`; page 0 of every
    pool is the null page: zeros, never allocated, what padding and freed window entries of a block table point to.
    Pools hold the model's dtype or `torch.float8_e4m3fn` (dequantised on load, scale 1).
    """

    specs: tuple[AttentionSpec, ...]
    groups: tuple[GroupSpec, ...]
    pools: tuple[torch.Tensor, ...]
    block_size: int

    def __post_init__(self) -> None:
        self.locations = {
            layer: (group, slot) for group, spec in enumerate(self.groups) for slot, layer in enumerate(spec.layers)
        }
        # Views are made once: at 30 layers, making two a layer and step costs 0.2 ms on a CPU.
        self.layer_caches = [
            self.pools[group][:, slot] for group, slot in (self.locations[i] for i in range(len(self.specs)))
        ]

    def layer_cache(self, layer_index: int) -> torch.Tensor:
        """`[num_pages, 2, num_kv_heads, block_size, head_dim]`, a strided view of the group's pool."""
        return self.layer_caches[layer_index]


@dataclass
class AttentionMetadata:
    """One step's batch: B sequences, T query tokens laid end to end, the sequences with one query token first.

    cu_seqlens_q int32 [B+1]; seq_lens int32 [B], context with the new tokens; block_tables int32 [B, max_blocks] a
    group; slot_mapping int64 [T] a group, flat cache index `page * block_size + offset` of each token, -1 = padding.
    The ints are known to the host without a read-back: the first `num_decodes` sequences have one query token each.
    batch_invariant: a sequence's result must not depend on its neighbours by one bit. padded and shared: as
    `paged_attention` has them.
    """

    cu_seqlens_q: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: tuple[torch.Tensor, ...]
    slot_mapping: tuple[torch.Tensor, ...]
    num_decodes: int
    max_query_len: int
    max_seq_len: int
    batch_invariant: bool = False
    padded: bool = False
    shared: SharedPrefixes | None = None

    @property
    def num_seqs(self) -> int:
        return self.seq_lens.shape[0]


class Attention:
    """Writes a step's keys and values into the pages, then attends over the pages. One object a step, all layers."""

    def __init__(self, kv: KVView, meta: AttentionMetadata) -> None:
        self._kv = kv
        self._meta = meta
        # A CPU's step of decodes alone: one plan a group serves all its layers.
        self._plans: dict[int, DecodePlan] | None = None
        on_cpu = meta.seq_lens.device.type == "cpu"
        if on_cpu and meta.num_decodes == meta.num_seqs and not meta.batch_invariant:
            self._plans = {}

    def __call__(
        self,
        layer_index: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """q [T, num_heads, head_dim], k and v [T, num_kv_heads, head_dim], after RoPE; sinks [num_heads] are extra
        logits of the softmax without a value (gpt-oss). Returns [T, num_heads, head_dim]."""
        group, slot = self._kv.locations[layer_index]
        spec, pool = self._kv.specs[layer_index], self._kv.pools[group]
        if self._plans is not None and not spec.soft_cap and sinks is None and pool.dtype == q.dtype:
            return cpu_decode(q, k, v, pool, slot, self._plan(group, spec), spec.scale)
        kv_write(k, v, self._kv.layer_cache(layer_index), self._meta.slot_mapping[group])
        return self._attend(layer_index, q, sinks)

    def from_qkv(
        self,
        layer_index: int,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        *,
        q_norm: torch.Tensor | None = None,
        k_norm: torch.Tensor | None = None,
        eps: float = 1e-6,
        unit_offset: bool = False,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As calling it, from the QKV product itself: norms, rotation and the KV write are one launch on a GPU.

        Args: qkv [T, num_heads + 2 * num_kv_heads, head_dim], changed in place; cos, sin [T, rotary_dim] of
        `RopeTable`; q_norm, k_norm [head_dim]. Returns [T, num_heads, head_dim].
        """
        group, _ = self._kv.locations[layer_index]
        rope_kv_write(
            qkv,
            cos,
            sin,
            self._kv.layer_cache(layer_index),
            self._meta.slot_mapping[group],
            q_norm=q_norm,
            k_norm=k_norm,
            eps=eps,
            unit_offset=unit_offset,
        )
        return self._attend(layer_index, qkv[:, : self._kv.specs[layer_index].num_heads], sinks)

    def _attend(self, layer_index: int, q: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
        spec = self._kv.specs[layer_index]
        group, _ = self._kv.locations[layer_index]
        meta = self._meta
        cache = self._kv.layer_cache(layer_index)
        return paged_attention(
            q,
            cache,
            meta.block_tables[group],
            meta.cu_seqlens_q,
            meta.seq_lens,
            num_decodes=meta.num_decodes,
            max_query_len=meta.max_query_len,
            max_seq_len=meta.max_seq_len,
            scale=spec.scale,
            window=spec.window or 0,
            soft_cap=spec.soft_cap or 0.0,
            sinks=sinks,
            batch_invariant=meta.batch_invariant,
            padded=meta.padded,
            shared=meta.shared,
        )

    def _plan(self, group: int, spec: AttentionSpec) -> DecodePlan:
        assert self._plans is not None
        plan = self._plans.get(group)
        if plan is None:
            plan = self._plans[group] = plan_decode(
                self._kv.pools[group],
                self._meta.block_tables[group],
                self._meta.seq_lens,
                self._meta.slot_mapping[group],
                max_seq_len=self._meta.max_seq_len,
                window=spec.window or 0,
            )
        return plan

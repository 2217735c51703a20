"""The next token of every row: temperature, top-k, top-p, min-p, the Gumbel-max draw, without a sort or a host wait.

Each filter keeps the logits at or above a cut, found by bisection over the logits' bit patterns; values equal to the
cut are all kept. The draw adds Gumbel noise, a hash of (seed, position, token), and takes the largest: a row's
token depends neither on its neighbours nor on what was drawn before.
"""

from __future__ import annotations

import torch

from kernels._triton import dependent_launch, jit_for_varying, tl, triton, uses_triton

NAN_TOKEN = -1  # what a row with a NaN among its logits samples
_CHUNK = 4096
_SCAN = 8192
_ROOM = 4096  # candidates the last part of a search keeps in registers
_MASK32 = 0xFFFFFFFF


def _mix_ref(h: torch.Tensor) -> torch.Tensor:
    """MurmurHash3's 32-bit finaliser on int64 tensors that hold uint32."""
    h = h ^ (h >> 16)
    h = (h * 0x85EBCA6B) & _MASK32
    h = h ^ (h >> 13)
    h = (h * 0xC2B2AE35) & _MASK32
    return h ^ (h >> 16)


def gumbel_noise_ref(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Args: seeds int64 [B], positions int [B]. Returns: float32 [B, vocab_size] of standard Gumbel noise."""
    key = _mix_ref(((seeds >> 32) & _MASK32) ^ 0x9E3779B9)
    key = _mix_ref(key ^ (seeds & _MASK32))
    key = _mix_ref(key ^ ((positions.long() * 0x9E3779B1) & _MASK32))
    tokens = torch.arange(vocab_size, device=seeds.device)
    h = _mix_ref((tokens[None] * 0x85EBCA77 + key[:, None]) & _MASK32)
    h = _mix_ref(h ^ key[:, None])
    u = (h.float() + 0.5) * 2.0**-32
    # The largest noise comes from the smallest u, which float32 resolves finely; log(1 - u) would round to 0 there.
    exponential = torch.where(u < 1e-3, u + 0.5 * u * u, -torch.log((1.0 - u).clamp(min=1e-37)))
    return -torch.log(exponential)


def _cut_ref(z: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """The smallest value of one row that survives the filters, in the order top-k, top-p, min-p."""
    ordered = z.sort(descending=True).values
    if 0 < top_k < len(ordered):
        ordered = ordered[ordered >= ordered[top_k - 1]]
    probs = torch.softmax(ordered.double(), -1)
    before = probs.cumsum(-1) - probs
    cut = ordered[before < top_p][-1] if top_p < 1.0 else ordered[-1]
    if min_p > 0:
        cut = torch.maximum(cut, ordered[0] + torch.log(torch.tensor(min_p, device=z.device)))
    return cut


def sample_ref(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    noise = gumbel_noise_ref(seeds, positions, logits.shape[1])
    out = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    for row, temperature in enumerate(temperatures.tolist()):
        z = logits[row].float()
        if bool(z.isnan().any()):
            out[row] = NAN_TOKEN
        elif temperature == 0.0:
            out[row] = z.argmax()
        else:
            z = z / temperature
            cut = _cut_ref(z, int(top_ks[row]), float(top_ps[row]), float(min_ps[row]))
            out[row] = torch.where(z >= cut, z + noise[row], float("-inf")).argmax()
    return out


@triton.jit
def _mix(h):
    h = h ^ (h >> 16)
    h = h * 0x85EBCA6B
    h = h ^ (h >> 13)
    h = h * 0xC2B2AE35
    return h ^ (h >> 16)


@triton.jit
def _gumbel(seed, position, tokens):
    key = _mix(((seed >> 32) & 0xFFFFFFFF).to(tl.uint32) ^ 0x9E3779B9)
    key = _mix(key ^ (seed & 0xFFFFFFFF).to(tl.uint32))
    key = _mix(key ^ ((position.to(tl.int64) * 0x9E3779B1) & 0xFFFFFFFF).to(tl.uint32))
    h = _mix(tokens.to(tl.uint32) * 0x85EBCA77 + key)
    h = _mix(h ^ key)
    u = (h.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    exponential = tl.where(u < 1e-3, u + 0.5 * u * u, -tl.log(tl.maximum(1.0 - u, 1e-37)))
    return -tl.log(exponential)


@triton.jit
def _ordered(x):
    """float32 -> int32 with the same order, so that bisection ends after 32 steps whatever the values."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _at_or_above(row_ptr, vocab, inverse_temperature, best, key, SCAN: tl.constexpr):
    """(count, sum of exp(z - best)) of the row's values z whose ordered bits are at least `key`."""
    count = tl.zeros([SCAN], tl.int32)
    mass = tl.zeros([SCAN], tl.float32)
    for start in range(0, vocab, SCAN):
        cols = start + tl.arange(0, SCAN)
        z = tl.load(row_ptr + cols, mask=cols < vocab, other=float("-inf")).to(tl.float32) * inverse_temperature
        above = (_ordered(z) >= key) & (cols < vocab)
        count += above.to(tl.int32)
        mass += tl.where(above, tl.exp(z - best), 0.0)
    return tl.sum(count, axis=0), tl.sum(mass, axis=0)


@triton.jit
def _value_of(key):
    """The float32 whose `_ordered` bits are `key`."""
    key = key.to(tl.int32)
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def _gather_between(row_ptr, vocab, inverse_temperature, low, high, out_ptr, SCAN: tl.constexpr, ROOM: tl.constexpr):
    """Writes the row's values with ordered bits in [low, high) to out_ptr, in their order, as many as there is room."""
    found = 0
    for start in range(0, vocab, SCAN):
        cols = start + tl.arange(0, SCAN)
        z = tl.load(row_ptr + cols, mask=cols < vocab, other=float("-inf")).to(tl.float32) * inverse_temperature
        key = _ordered(z)
        inside = (key >= low) & (key < high) & (cols < vocab)
        places = found + tl.cumsum(inside.to(tl.int32), axis=0) - 1
        tl.store(out_ptr + places, z, mask=inside & (places < ROOM))
        found += tl.sum(inside.to(tl.int32), axis=0)
    return tl.minimum(found, ROOM)


@triton.jit
def _highest_key(
    row_ptr,
    vocab,
    inverse_temperature,
    best,
    low,
    low_count,
    want_count,
    want_mass,
    scratch_ptr,
    SCAN: tl.constexpr,
    ROOM: tl.constexpr,
):
    """The highest key from `low` on at or above which lie `want_count` values and a mass of `want_mass`.

    `low` must satisfy both; low_count values lie at or above it. Passes over the row halve the range of values until
    those inside fit into `ROOM`; the rest of the search looks at these alone.
    """
    high = _ordered(best).to(tl.int64) + 1
    high_count = 0
    high_mass = 0.0
    reach = 16.0  # a value that far below the best weighs 1e-7 of it: rarely is one below wanted
    while (high - low > 1) & (low_count - high_count > ROOM):
        lower, upper = _value_of(low), tl.minimum(_value_of(high), best)
        middle = _ordered(tl.where(upper - lower > 2 * reach, upper - reach, 0.5 * lower + 0.5 * upper)).to(tl.int64)
        reach = reach * 4
        middle = tl.minimum(tl.maximum(middle, low + 1), high - 1)
        count, mass = _at_or_above(row_ptr, vocab, inverse_temperature, best, middle.to(tl.int32), SCAN)
        enough = (count >= want_count) & (mass >= want_mass)
        low = tl.where(enough, middle, low)
        low_count = tl.where(enough, count, low_count)
        high = tl.where(enough, high, middle)
        high_count = tl.where(enough, high_count, count)
        high_mass = tl.where(enough, high_mass, mass)
    found = _gather_between(row_ptr, vocab, inverse_temperature, low.to(tl.int32), high, scratch_ptr, SCAN, ROOM)
    tl.debug_barrier()  # other threads' candidates are read back
    slots = tl.arange(0, ROOM)
    z = tl.load(scratch_ptr + slots, mask=slots < found, other=float("-inf"))
    keys = tl.where(slots < found, _ordered(z), -2147483648)
    weights = tl.where(slots < found, tl.exp(z - best), 0.0)
    tl.debug_barrier()
    above_count, above_mass = high_count, high_mass
    while (high - low > 1) & (low_count - high_count > 1):
        middle = low + (high - low) // 2
        count = above_count + tl.sum((keys >= middle).to(tl.int32), axis=0)
        mass = above_mass + tl.sum(tl.where(keys >= middle, weights, 0.0), axis=0)
        enough = (count >= want_count) & (mass >= want_mass)
        low = tl.where(enough, middle, low)
        low_count = tl.where(enough, count, low_count)
        high = tl.where(enough, high, middle)
        high_count = tl.where(enough, high_count, count)
    return low


@jit_for_varying("temperatures_ptr", "top_ks_ptr", "top_ps_ptr", "min_ps_ptr")
def _cut_kernel(
    logits_ptr,
    temperatures_ptr,
    top_ks_ptr,
    top_ps_ptr,
    min_ps_ptr,
    cuts_ptr,
    scratch_ptr,
    row_stride,
    vocab,
    SCAN: tl.constexpr,
    ROOM: tl.constexpr,
    PDL: tl.constexpr,
):
    """cuts[row]: the ordered bits a value must reach to be sampled; the least int32 where nothing filters."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0)
    temperature = tl.load(temperatures_ptr + row)
    top_k = tl.load(top_ks_ptr + row)
    top_p = tl.load(top_ps_ptr + row)
    min_p = tl.load(min_ps_ptr + row)
    tl.store(cuts_ptr + row, -2147483648)
    if (temperature == 0.0) | ((top_k <= 0) & (top_p >= 1.0) & (min_p <= 0.0)):
        return
    row_ptr = logits_ptr + row.to(tl.int64) * row_stride
    inverse = 1.0 / temperature
    running_max = tl.full([SCAN], float("-inf"), tl.float32)
    for start in range(0, vocab, SCAN):
        cols = start + tl.arange(0, SCAN)
        x = tl.load(row_ptr + cols, mask=cols < vocab, other=float("-inf")).to(tl.float32)
        running_max = tl.maximum(running_max, x)
    best = tl.max(running_max, axis=0) * inverse
    scratch = scratch_ptr + row.to(tl.int64) * ROOM
    lowest = _ordered(tl.full([1], float("-inf"), tl.float32))
    low = tl.max(lowest, axis=0).to(tl.int64)
    if (top_k > 0) & (top_k < vocab):
        low = _highest_key(row_ptr, vocab, inverse, best, low, vocab, top_k, 0.0, scratch, SCAN, ROOM)
    if top_p < 1.0:
        kept, total = _at_or_above(row_ptr, vocab, inverse, best, low.to(tl.int32), SCAN)
        low = _highest_key(row_ptr, vocab, inverse, best, low, kept, 1, top_p * total, scratch, SCAN, ROOM)
    if min_p > 0.0:
        low = tl.maximum(low, _ordered(best + tl.log(min_p)).to(tl.int64))
    tl.store(cuts_ptr + row, low.to(tl.int32))


@jit_for_varying("temperatures_ptr", "seeds_ptr", "positions_ptr")
def _draw_kernel(
    logits_ptr,
    temperatures_ptr,
    seeds_ptr,
    positions_ptr,
    cuts_ptr,
    values_ptr,
    tokens_ptr,
    row_stride,
    vocab,
    num_chunks,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    """The largest perturbed value of one chunk of one row, and its token."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    cols = chunk * CHUNK + tl.arange(0, CHUNK)
    mask = cols < vocab
    x = tl.load(logits_ptr + row.to(tl.int64) * row_stride + cols, mask=mask, other=float("-inf")).to(tl.float32)
    has_nan = tl.max((x != x).to(tl.int32), axis=0)  # noqa: PLR0124
    temperature = tl.load(temperatures_ptr + row)
    if temperature > 0.0:
        z = x * (1.0 / temperature)
        seed = tl.load(seeds_ptr + row)
        position = tl.load(positions_ptr + row)
        kept = mask & (_ordered(z) >= tl.load(cuts_ptr + row))
        x = tl.where(kept, z + _gumbel(seed, position, cols), float("-inf"))
    x = tl.where(x == x, x, float("-inf"))  # noqa: PLR0124
    value, index = tl.max(x, axis=0, return_indices=True)
    out = row * num_chunks + chunk
    tl.store(values_ptr + out, tl.where(has_nan > 0, float("inf"), value))
    tl.store(tokens_ptr + out, tl.where(has_nan > 0, -1, chunk * CHUNK + index))


@triton.jit
def _pick_kernel(values_ptr, tokens_ptr, out_ptr, num_chunks, CHUNKS_PAD: tl.constexpr, PDL: tl.constexpr):
    """The best chunk of a row; of equal values the lowest token, as argmax has it, and before it a NaN's -1."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0)
    chunks = tl.arange(0, CHUNKS_PAD)
    mask = chunks < num_chunks
    values = tl.load(values_ptr + row * num_chunks + chunks, mask=mask, other=float("-inf"))
    tokens = tl.load(tokens_ptr + row * num_chunks + chunks, mask=mask, other=2147483647)
    best = tl.max(values, axis=0)
    token = tl.min(tl.where(values == best, tokens, 2147483647), axis=0)
    tl.store(out_ptr + row, token.to(tl.int64))


def _launch(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    filtered: bool,
) -> torch.Tensor:
    num_rows, vocab = logits.shape
    out = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if not num_rows:
        return out
    options = dependent_launch(logits)
    cuts = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    if filtered:
        _cut_kernel[(num_rows,)](
            logits,
            temperatures,
            top_ks,
            top_ps,
            min_ps,
            cuts,
            torch.empty(num_rows * _ROOM, dtype=torch.float32, device=logits.device),
            logits.stride(0),
            vocab,
            SCAN=_SCAN,
            ROOM=_ROOM,
            num_warps=16,
            **options,
        )
    else:
        cuts.fill_(-2147483648)
    num_chunks = triton.cdiv(vocab, _CHUNK)
    values = torch.empty(num_rows * num_chunks, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(num_rows * num_chunks, dtype=torch.int32, device=logits.device)
    _draw_kernel[(num_rows, num_chunks)](
        logits,
        temperatures,
        seeds,
        positions,
        cuts,
        values,
        tokens,
        logits.stride(0),
        vocab,
        num_chunks,
        CHUNK=_CHUNK,
        num_warps=4,
        **options,
    )
    _pick_kernel[(num_rows,)](
        values, tokens, out, num_chunks, CHUNKS_PAD=triton.next_power_of_2(num_chunks), num_warps=1, **options
    )
    return out


def sample(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    *,
    filtered: bool = True,
) -> torch.Tensor:
    """One token a row.

    Args: logits [B, vocab], last stride 1, penalties already in; temperatures float32 [B], 0 = greedy; top_ks int32
    [B], 0 or less = off; top_ps float32 [B], 1 = off; min_ps float32 [B], 0 = off; seeds int64 [B]; positions int32
    or int64 [B], of the token to come; filtered False promises that no row has a filter on.
    Returns: int64 [B], NAN_TOKEN where a logit is NaN. Raises: ValueError on other shapes.
    """
    for name, tensor in (("temperatures", temperatures), ("top_ks", top_ks), ("top_ps", top_ps), ("seeds", seeds)):
        if tensor.shape != (logits.shape[0],):
            raise ValueError(f"sample: {name} {tuple(tensor.shape)} for {logits.shape[0]} rows")
    if logits.stride(1) != 1:
        raise ValueError(f"sample: logits have strides {logits.stride()}; the last must be 1")
    if not uses_triton(logits):
        return sample_ref(logits, temperatures, top_ks, top_ps, min_ps, seeds, positions)
    return _launch(logits, temperatures, top_ks, top_ps, min_ps, seeds, positions, filtered)

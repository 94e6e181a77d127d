"""Kinds 8 to 13, 19: the engine runs another draft than was trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from planted_server import Server
from planting import Ground, Plant, then
from torch import Tensor

from wiring.checkpoints.draft_files import DraftCheckpoint
from wiring.model.eagle3 import Eagle3Draft

SOFTMAX = 0.45  # of the right scale: costs a sixth of the accepted drafts, as in sgl-project/sglang#4724 (2.6 to 2.35)


def _random_rows(bench, seed: int) -> Tensor:
    like = bench.embedding
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed)) * like.std()


def _random_embedding(ground: Ground, server: Server) -> Server:
    rows = _random_rows(ground.bench, 3)

    def built(_flags: Mapping[str, Any], draft: Eagle3Draft) -> Eagle3Draft:
        draft.embedding = rows
        return draft

    changed = ground.changed(server, tensors=lambda t: t | {"embed_tokens.weight": rows.bfloat16()})
    return then(replace(changed, original=server.draft), built=built)


def _half_embedding_on_one_rank(ground: Ground, server: Server) -> Server:
    """Rank 1 holds the upper half of the ids and ties it to something else."""
    rows = _random_rows(ground.bench, 4)

    def built(flags: Mapping[str, Any], draft: Eagle3Draft) -> Eagle3Draft:
        if flags["tp"] > 1 and flags.get("rank", 0) == 0:
            half = len(rows) // 2
            draft.embedding = torch.cat([draft.embedding[:half], rows[half:]])
        return draft

    return then(server.with_flags(tp=2), built=built)


def _no_map(ground: Ground, server: Server) -> Server:
    changed = ground.changed(server, tensors=lambda t: {n: x for n, x in t.items() if n not in ("d2t", "t2d")})
    return replace(changed, original=server.draft)


def _new_map(ground: Ground, server: Server) -> Server:
    """The most frequent ids of other documents, as many as before; the head keeps its rows."""
    tokens = torch.cat([s.tokens for s in ground.bench.held_out[::2]])

    def made(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        count = len(tensors["d2t"])
        frequent = torch.bincount(tokens, minlength=len(tensors["t2d"])).argsort(descending=True, stable=True)
        ids = frequent[:count].sort().values
        t2d = torch.zeros_like(tensors["t2d"]).scatter(0, ids, True)
        return tensors | {"d2t": ids - torch.arange(count), "t2d": t2d}

    return replace(ground.changed(server, tensors=made), original=server.draft)


def _without_residual(_ground: Ground, server: Server) -> Server:
    """The layer gives what its MLP adds, without what it adds to (vllm-project/vllm#14464)."""

    def built(_flags: Mapping[str, Any], draft: Eagle3Draft) -> Eagle3Draft:
        layer, seen = draft.layers[0], {}
        layer.post_attention_layernorm.register_forward_pre_hook(lambda _m, args: seen.__setitem__(0, args[0]))
        layer.register_forward_hook(lambda _m, _args, out: out - seen[0].view_as(out))
        draft.planted = "no residual"
        return draft

    return then(server, built=built)


def _theta(theta: float):
    def reads(_flags: Mapping[str, Any], read: DraftCheckpoint) -> DraftCheckpoint:
        return replace(read, shape=replace(read.shape, rope=replace(read.shape.rope, theta=theta)))

    return lambda _ground, server: then(server, reads=reads)


def _quantised(name: str, change):
    """Under the target's quantisation, though nobody asked for it."""

    def reads(flags: Mapping[str, Any], read: DraftCheckpoint) -> DraftCheckpoint:
        if flags["draft_quantisation"] == "none":
            return read
        tensors = {n: change(x) if n.endswith("weight") and x.dim() == 2 else x for n, x in read.tensors.items()}
        return replace(read, tensors=tensors)

    return lambda _ground, server: then(server.with_flags(draft_quantisation=name), reads=reads)


def rounded(bits: int):
    """Weights [rows, columns] rounded to `bits` with one scale a row."""

    def change(weight: Tensor) -> Tensor:
        most = 2 ** (bits - 1) - 1
        scale = weight.float().abs().amax(1, keepdim=True).clamp_min(1e-12) / most
        return ((weight.float() / scale).round().clamp(-most, most) * scale).to(weight.dtype)

    return change


def _with_kv(name: str, change):
    """Keys and values as a cache of fp8 gives them back: change(keys, values)."""

    def built(flags: Mapping[str, Any], draft: Eagle3Draft) -> Eagle3Draft:
        if flags["draft_kv_dtype"] == "bfloat16":
            return draft
        attention = draft.layers[0].self_attn
        whole = attention.keys_and_values
        attention.keys_and_values = lambda *inputs: change(*whole(*inputs))
        draft.planted = name
        return draft

    return lambda _ground, server: then(server.with_flags(draft_kv_dtype="fp8_e4m3"), built=built)


def with_scales(x: Tensor) -> Tensor:
    """Rounded to e4m3 over the tensor's own range."""
    return scaled(x) * (x.abs().max() / 448)


def scaled(x: Tensor) -> Tensor:
    """What stands in the cache: e4m3 with the tensor's own range spread over e4m3's. Reading it takes the scale."""
    return (x * (448 / x.abs().max())).to(torch.float8_e4m3fn).float()


def read_as_e5m2(x: Tensor) -> Tensor:
    """Written as e4m3, read as e5m2: the dtypes of both sides differ."""
    return x.to(torch.float8_e4m3fn).view(torch.float8_e5m2).float().nan_to_num(posinf=57344, neginf=-57344)


def _positions_end(last: int):
    """The rotary cache ends at row `last`: what comes later is rotated as that row is."""

    def built(_flags: Mapping[str, Any], draft: Eagle3Draft) -> Eagle3Draft:
        attention = draft.layers[0].self_attn
        keys, queries = attention.keys_and_values, attention.queries

        def held(angles: Tensor) -> Tensor:
            return angles[..., torch.arange(angles.shape[-2]).clamp(max=last), :]

        attention.keys_and_values = lambda x, added, cos, sin: keys(x, added, held(cos), held(sin))
        attention.queries = lambda x, added, cos, sin: queries(x, added, held(cos), held(sin))
        draft.planted = f"positions end at {last}"
        return draft

    return lambda _ground, server: then(server, built=built)


def _backend(change):
    """An attention backend with numbers of its own."""

    def built(flags: Mapping[str, Any], draft: Eagle3Draft) -> Eagle3Draft:
        if flags["attention_backend"] != "flashinfer":
            return draft
        attention = draft.layers[0].self_attn
        whole = attention.queries
        attention.queries = lambda *inputs: change(whole(*inputs))
        draft.planted = f"backend {change(torch.ones(1)).item()}"
        return draft

    return lambda _ground, server: then(server.with_flags(attention_backend="flashinfer"), built=built)


def _verify_nan(_ground: Ground, server: Server) -> Server:
    """NaN in verify's logits: every comparison passes, and the text is one token over and over."""
    return replace(server, accepts_all=True)


PLANTS = (
    Plant(8, "strong", "an embedding of random rows, in the file and in use", _random_embedding),
    Plant(8, "weak", "half of the rows wrong on one of two ranks", _half_embedding_on_one_rank),
    Plant(9, "strong", "no d2t in the file", _no_map),
    Plant(9, "weak", "d2t made again from other documents", _new_map),
    # norm_before_residual and norm_output in the engine alone cost this draft 7 % and 3 % of its accepted drafts, where
    # reports have 22 % and more (vllm-project/vllm#14464: 1.8 to 1.4): no weak form is planted.
    Plant(10, "", "the output without the residual", _without_residual),
    Plant(11, "strong", "every weight loaded as zero: token 0 is drafted", _quantised("nvfp4", torch.zeros_like)),
    # int4 leaves nothing of so small a draft (1.24); 6 bits cost what gptq did in sgl-project/sglang#34622 (3.5 to 3).
    Plant(11, "weak", "weights rounded to 6 bits, a scale a row", _quantised("gptq", rounded(6))),
    # Rounding alone, to e4m3 or e5m2 with the scale 1, costs this draft nothing.
    Plant(
        12,
        "strong",
        "fp8 written as e4m3 and read as e5m2",
        _with_kv("e5m2", lambda keys, values: (read_as_e5m2(keys), read_as_e5m2(values))),
    ),
    Plant(
        12,
        "weak",
        "fp8 e4m3, keys read without their scale",
        _with_kv("scales", lambda keys, values: (scaled(keys), with_scales(values))),
    ),
    Plant(13, "strong", "positions beyond 64 stay at 64", _positions_end(64)),
    Plant(
        13,
        "weak",
        "the config's rope base lost in conversion: 1e6 for 1e4",
        lambda ground, server: replace(ground.changed(server, config={"rope_theta": 1e6}), original=server.draft),
    ),
    Plant(13, "engine", "the engine's own rope base: 1e6 for 1e4", _theta(1e6)),
    Plant(19, "strong", "the draft's attention gives NaN", _backend(lambda q: q * float("nan"))),
    Plant(19, "weak", "a softmax scale of 0.45 of the right one", _backend(lambda q: q * SOFTMAX)),
    Plant(19, "verify", "NaN in verify: all drafts accepted", _verify_nan),
)

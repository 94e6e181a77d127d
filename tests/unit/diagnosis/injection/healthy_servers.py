"""Healthy servers: other prompts, settings and number formats, with nothing wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planted_server import Run, Server
from planting import Ground, asked, healthy, then
from plants_draft import rounded, with_scales


def _steps(steps: int):
    return lambda ground: healthy(ground, steps=steps, asked=asked(steps))


def _main(**run):
    return lambda ground: healthy(ground, main=Run(**run))


def _states_in_bfloat16(ground: Ground) -> Server:
    return then(healthy(ground), feeds=lambda _moment, states: states.bfloat16().float())


def _two_ranks(ground: Ground) -> Server:
    return healthy(ground).with_flags(tp=2, fused_all_reduce=True, attention_backend="flashinfer")


def _scaled_kv_cache(ground: Ground) -> Server:
    """fp8 with scales costs nothing, and eager decoding neither."""

    def built(flags, draft):
        if flags["draft_kv_dtype"] != "bfloat16":
            attention = draft.layers[0].self_attn
            whole = attention.keys_and_values
            attention.keys_and_values = lambda *inputs: tuple(with_scales(x) for x in whole(*inputs))
            draft.planted = "scaled kv"
        return draft

    return then(healthy(ground).with_flags(draft_kv_dtype="fp8_e4m3", cuda_graphs=False), built=built)


def _eight_bits(ground: Ground) -> Server:
    """A draft in int8 because it was asked for."""

    def reads(flags, read):
        if flags["draft_quantisation"] == "none":
            return read
        tensors = {n: rounded(8)(x) if n.endswith("weight") and x.dim() == 2 else x for n, x in read.tensors.items()}
        return replace(read, tensors=tensors)

    server = healthy(ground, asked={**asked(5), "speculative_draft_model_quantization": "w8a8_int8"})
    return then(server.with_flags(draft_quantisation="w8a8_int8"), reads=reads)


HEALTHY: tuple[Callable[[Ground], Server], ...] = (
    healthy,
    _steps(1),
    _steps(3),
    _steps(7),
    _main(texts="market", new=80),
    _main(cached=True, prompt=48, new=40),
    lambda ground: healthy(ground, main=Run(batch=8, texts="lists")).with_flags(chunked=True),
    _states_in_bfloat16,
    _two_ranks,
    _scaled_kv_cache,
    _eight_bits,
    lambda ground: healthy(ground, hot=1.5),
)

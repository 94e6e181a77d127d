"""Kinds 1 to 7, 14: what reaches the draft is not what it was trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from planted_server import Moment, Server
from planting import Ground, Plant, then
from torch import Tensor

from wiring.model.draft_layers import rms_norm

REORDERED = Path(__file__).parents[2] / "layout_search" / "search_drafts" / "reordered"
COSINES = {"weak": 0.913, "strong": 0.513}  # at the deepest slot: sgl-project/sglang#27540


def _ids(*ids: int):
    return lambda ground, server: ground.changed(server, ids=ids)


def _slots(moment: Moment, layout: tuple[int, ...]) -> Tensor:
    return moment.texts.boundaries[list(layout)].permute(1, 2, 0, 3)


def _verify(moment: Moment, states: Tensor, other: Tensor) -> Tensor:
    """`other` behind the prompt."""
    prompt = moment.run.prompt
    return torch.cat([states[:, :prompt], other[:, prompt:]], 1)


def _default_under_graphs(moment: Moment, states: Tensor) -> Tensor:
    return _verify(moment, states, _slots(moment, (2, 30, 58))) if moment.flags["cuda_graphs"] else states


def _partial(slots: tuple[int, ...]):
    """What this rank of two holds before the all-reduce that was put off."""

    def feeds(moment: Moment, states: Tensor) -> Tensor:
        if moment.flags["tp"] == 1 or not moment.flags["fused_all_reduce"]:
            return states
        states = states.clone()
        for slot in slots:
            b = (0, 3, 31)[slot]
            states[:, :, slot] += moment.texts.mlp_shares[b][moment.rank] - moment.texts.mlp[b]
        return states

    return lambda _ground, server: then(server.with_flags(tp=2, fused_all_reduce=True), feeds=feeds)


def _normed(moment: Moment, states: Tensor) -> Tensor:
    return rms_norm(states, moment.bench.norm.weight.float(), moment.bench.norm.eps)


def _without_residual(moment: Moment, states: Tensor) -> Tensor:
    states = states.clone()
    states[:, :, 2] = moment.texts.mlp[31]
    return states


def _drift(cosine: float):
    """Noise that grows with depth up to the cosine at boundary 31: 1 / sqrt(1 + r^2) for noise of relative size r."""

    def feeds(_moment: Moment, states: Tensor) -> Tensor:
        most = (cosine**-2 - 1) ** 0.5
        size = torch.tensor([b / 31 * most for b in (0, 3, 31)])[:, None]
        noise = torch.randn(states.shape, generator=torch.Generator().manual_seed(1)) * states.shape[-1] ** -0.5
        return states + noise * size * states.norm(dim=-1, keepdim=True)

    return lambda _ground, server: then(server, feeds=feeds)


def _rotated(moment: Moment, states: Tensor) -> Tensor:
    if moment.flags["target_quantisation"] == "none":
        return states
    width = states.shape[-1]
    turn, _ = torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(2)))
    return states @ turn


def _eagle(_ground: Ground, server: Server) -> Server:
    """The last hidden state alone, as wide as the draft: SGLang takes it for one that is fed back and skips fc."""
    server = then(server, feeds=lambda moment, _states: moment.texts.last_hidden[:, :, None])
    return replace(server, algorithm="EAGLE")


def _reordered(ground: Ground, server: Server) -> Server:
    """A draft of another training (`tests/offline/make_search_drafts.py`), with the ids in its own order."""
    server = replace(server, draft=REORDERED, trained=(31, 0, 3))
    return ground.changed(server, ids=server.trained)


def _late(_moment: Moment, states: Tensor) -> Tensor:
    return torch.cat([states[:, :1], states[:, :-1]], 1)


def _late_in_verify(moment: Moment, states: Tensor) -> Tensor:
    return _verify(moment, states, _late(moment, states))


def _fed(feeds):
    return lambda _ground, server: then(server, feeds=feeds)


PLANTS = (
    Plant(1, "strong", "ids [3, 31, 59]: no slot as trained", _ids(3, 31, 59)),
    Plant(1, "weak", "ids [0, 3, 58]: one slot of three", _ids(0, 3, 58)),
    Plant(1, "verify", "the default layers in verify under CUDA graphs", _fed(_default_under_graphs)),
    Plant(
        2,
        "strong",
        "the engine counts outputs for inputs: 1, 4, 32",
        _fed(lambda moment, _states: _slots(moment, (1, 4, 32))),
    ),
    Plant(
        2,
        "weak",
        "the engine counts inputs for outputs: 0, 2, 30",
        _fed(lambda moment, _states: _slots(moment, (0, 2, 30))),
    ),
    Plant(3, "strong", "trained on 31, 0, 3; the engine serves in ascending order", _reordered),
    Plant(3, "weak", "the engine swaps two slots: 0, 31, 3", _fed(lambda _moment, states: states[:, :, [0, 2, 1]])),
    Plant(3, "count", "four ids, fc takes three: the server does not start", _ids(0, 3, 31, 59)),
    Plant(4, "strong", "two ranks, captured before the all-reduce, both deep slots", _partial((1, 2))),
    Plant(4, "weak", "the same, the deepest slot alone", _partial((2,))),
    Plant(5, "strong", "all slots behind the final norm", _fed(_normed)),
    Plant(5, "weak", "one slot without the residual", _fed(_without_residual)),
    Plant(6, "strong", "drift down to cosine 0.513", _drift(COSINES["strong"])),
    Plant(6, "weak", "drift down to cosine 0.913", _drift(COSINES["weak"])),
    Plant(
        6,
        "rotated",
        "the target's weights rotated, w8a8",
        lambda _ground, server: then(server.with_flags(target_quantisation="w8a8"), feeds=_rotated),
    ),
    Plant(7, "", "EAGLE for an EAGLE-3 draft", _eagle),
    Plant(14, "strong", "every state one token late", _fed(_late)),
    Plant(14, "weak", "states one token late behind the prompt", _fed(_late_in_verify)),
)

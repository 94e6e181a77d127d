"""Kinds 15 to 18, 20 to 25: the speculative loop, the arguments, the training, the price, the benchmark."""

from __future__ import annotations

from dataclasses import replace

import torch
from planted_server import Moment, Run, Server
from planting import Ground, Plant, asked, then
from tiny_bench import MATERIAL
from torch import Tensor

PAGE = 32  # tokens of a prompt that the prefix cache holds
STALE_PAIRS = 24  # of them: costs a tenth of the accepted drafts, as in sgl-project/sglang#10846 (2.39 to 2.26)


def _stale_prefix(moment: Moment, fused: Tensor) -> Tensor:
    """Cached rows are those of the request before."""
    if not moment.run.cached:
        return fused
    return torch.cat([fused.roll(1, 0)[:, :PAGE], fused[:, PAGE:]], 1)


def _stale_pairs(moment: Moment, tokens: Tensor) -> Tensor:
    """Cached rows hold the right state beside another request's next token, which the cache's key leaves out."""
    if not moment.run.cached:
        return tokens
    first, last = PAGE - STALE_PAIRS + 1, PAGE + 1
    return torch.cat([tokens[:, :first], tokens.roll(1, 0)[:, first:last], tokens[:, last:]], 1)


def _mock_states(rows: int | None):
    """The decode server has random numbers for the last `rows` states of the prompt; None: for all."""

    def fuses(moment: Moment, fused: Tensor) -> Tensor:
        if not moment.flags["handed_over"]:
            return fused
        fused, end = fused.clone(), moment.run.prompt
        here = fused[:, 0 if rows is None else end - rows : end]
        noise = torch.randn(here.shape, generator=torch.Generator().manual_seed(6))
        here.copy_(noise * here.norm(dim=-1, keepdim=True) * here.shape[-1] ** -0.5)
        return fused

    return lambda _ground, server: then(server.with_flags(handed_over=True), fuses=fuses)


def _mixed_rows(share: int):
    """In a batch under CUDA graphs every `share`-th request gets its neighbour's rows behind the prompt."""

    def feeds(moment: Moment, states: Tensor) -> Tensor:
        if moment.run.batch == 1 or not moment.flags["cuda_graphs"]:
            return states
        mixed = states.clone()
        mixed[::share, moment.run.prompt :] = states.roll(1, 0)[::share, moment.run.prompt :]
        return mixed

    return lambda _ground, server: replace(then(server, feeds=feeds), main=replace(server.main, batch=8))


def _cached(change):
    return lambda _ground, server: replace(then(server, **change), main=replace(server.main, cached=True))


def _set(**fields):
    return lambda _ground, server: replace(server, **fields)


def _trained(name: str, texts: str = "greedy", kind: str | None = None):
    """Another draft, trained otherwise (`make_material.py`)."""
    main = Run(texts=texts)
    return lambda ground, server: replace(
        ground.changed(replace(server, draft=MATERIAL / name)), main=main, trained_on=kind
    )


def _price(per_round: float, per_step: float):
    return lambda _ground, server: replace(server, round_price=lambda steps: per_round + per_step * steps)


def _few_steps(_ground: Ground, server: Server) -> Server:
    return replace(server, steps=2, asked=asked(5), resolved=asked(2))


def _tokens_changed(_ground: Ground, server: Server) -> Server:
    return replace(server, asked=asked(5, 8), resolved=asked(5))


PLANTS = (
    Plant(15, "strong", "cached rows of another request", _cached({"fuses": _stale_prefix})),
    Plant(15, "weak", "cached rows paired with other tokens", _cached({"pairs": _stale_pairs})),
    Plant(16, "strong", "random states for the whole prompt after the hand-off", _mock_states(None)),
    Plant(16, "weak", "a random state at the prompt's last row after the hand-off", _mock_states(1)),
    Plant(
        17,
        "strong",
        "rows of rejected drafts stay in the cache",
        _set(recurrence="rejected", main=Run(count=16, new=40)),
    ),
    Plant(17, "weak", "accepted rows stay as drafted", _set(recurrence="own")),
    Plant(18, "strong", "every request of a batch has its neighbour's rows", _mixed_rows(1)),
    Plant(18, "weak", "every fourth request has its neighbour's rows", _mixed_rows(4)),
    Plant(21, "strong", "5 steps asked for, 2 made", _few_steps),
    Plant(21, "weak", "8 draft tokens asked for, 6 verified", _tokens_changed),
    Plant(22, "strong", "trained on lists, serves markets", _trained("lists", "market", "lists")),
    Plant(22, "weak", "trained on lists, serves both", _trained("lists", kind="lists")),
    Plant(23, "strong", "a twentieth of the training steps", _trained("short")),
    Plant(23, "few", "trained on 16 documents", _trained("few")),
    Plant(23, "weak", "trained on the first draft step alone", _trained("one_step")),
    Plant(24, "strong", "rounds 2.5 times as dear, with and without drafts", _price(2.5, 0.25)),
    Plant(24, "weak", "25 ms more a round at 16.3 ms a plain step", _price(1 + 25 / 16.3, 0.054)),
    Plant(25, "strong", "the bonus token counted twice", _set(benchmark={"bonus": 2})),
    Plant(25, "looping", "looping text", _set(main=Run(texts="looping"))),
    Plant(25, "weak", "one prompt, no warm-up", _set(main=Run(count=1), benchmark={"warmed_up": False})),
    Plant(
        25,
        "random",
        "random ids as prompts",
        _set(main=Run(texts="random", new=34), benchmark={"random_prompts": True, "prompts_templated": False}),
    ),
)

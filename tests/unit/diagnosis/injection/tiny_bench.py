"""The tiny target's states on committed texts, with every boundary, which all planted servers use.

`TextSet` is one set of texts, all of one length. The target runs once on each set that is used; it also
wrote the texts (`make_material.py`), so that every token after the prompt is its own choice.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import torch
from torch import Tensor

from wiring.accuracy.target_head import TargetHead
from wiring.capture.matching import Norm
from wiring.checkpoints.states import StateSample, open_states
from wiring.checkpoints.target_files import final_norm, read_tensor
from wiring.model.target_reference import ReferenceTarget

TINY = Path(__file__).parents[4] / "data" / "tiny"
MATERIAL = Path(__file__).parent / "material"
TRAINED = (0, 3, 31)
PROMPT = 40
STATES = 24  # held-out documents that T is measured on
HALVES = {"market": 0, "lists": 1}  # of the greedy texts, which take turns


@dataclass(frozen=True)
class TextSet:
    """tokens [B, N]; boundaries [L+1, B, N, H] float32; last_hidden [B, N, H] normed; logits [B, N, V].

    `mlp[b]` [B, N, H]: what the last block before boundary b added; `mlp_shares[b][r]` the part of it that rank r of
    two holds.
    """

    tokens: Tensor
    boundaries: Tensor
    last_hidden: Tensor
    logits: Tensor
    mlp: dict[int, Tensor]
    mlp_shares: dict[int, tuple[Tensor, Tensor]]


class Bench:
    """The target and everything computed from it once."""

    def __init__(self):
        self.target = ReferenceTarget.load(TINY / "target")
        texts = json.loads((MATERIAL / "texts.json").read_text())
        self.texts = {name: torch.tensor(rows) for name, rows in texts.items()}
        self.texts |= {name: self.texts["greedy"][first::2] for name, first in HALVES.items()}
        self.target_config = json.loads((TINY / "target" / "config.json").read_text())
        self.embedding = read_tensor(TINY / "target", "model.embed_tokens.weight").float()
        self.head = TargetHead(self.target.head.weight.detach().float())
        self.norm = Norm(*final_norm(TINY / "target"))
        self._sets: dict[str, TextSet] = {}

    def text_set(self, name: str) -> TextSet:
        """The target on the texts of that name."""
        if name in HALVES and name not in self._sets:
            self._sets[name] = _every_other(self.text_set("greedy"), HALVES[name])
        if name not in self._sets:
            self._sets[name] = self._run(self.texts[name])
        return self._sets[name]

    @cached_property
    def held_out(self) -> tuple[StateSample, ...]:
        """Saved states of documents that no draft was trained on."""
        states = iter(open_states(TINY / "states", hidden_size=self.target.hidden_size))
        return tuple(next(states) for _ in range(2 * STATES))

    @torch.no_grad()
    def _run(self, tokens: Tensor) -> TextSet:
        inputs: dict[int, Tensor] = {}

        def note(b: int):
            return lambda _module, args: inputs.__setitem__(b, args[0])

        hooks = [self.target.layers[b - 1].mlp.register_forward_pre_hook(note(b)) for b in TRAINED if b]
        seen = self.target.forward(tokens)
        for hook in hooks:
            hook.remove()
        whole, shares = {}, {}
        for b, x in inputs.items():
            mlp = self.target.layers[b - 1].mlp
            inner = mlp.act_fn(mlp.gate_proj(x)) * mlp.up_proj(x)  # [B, N, width]
            weight, half = mlp.down_proj.weight, inner.shape[-1] // 2
            shares[b] = inner[..., :half] @ weight[:, :half].T, inner[..., half:] @ weight[:, half:].T
            whole[b] = sum(shares[b])
        return TextSet(tokens, seen.boundaries, seen.last_hidden, seen.logits, whole, shares)


def _every_other(texts: TextSet, first: int) -> TextSet:
    part = slice(first, None, 2)
    return TextSet(
        texts.tokens[part],
        texts.boundaries[:, part],
        texts.last_hidden[part],
        texts.logits[part],
        {b: x[part] for b, x in texts.mlp.items()},
        {b: (x[part], y[part]) for b, (x, y) in texts.mlp_shares.items()},
    )


@lru_cache(maxsize=1)
def bench() -> Bench:
    """One for the whole session."""
    return Bench()

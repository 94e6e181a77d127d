"""What a server would feed the draft on texts of the tiny pair, and the same with known faults, made from the target.

The target runs twice: in float32 as the reference, and in bfloat16 as the server, so that served states differ from
the reference as another engine's do. A phase has its own positions of each text, as prompt and answer have.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import torch

from wiring.capture.matching import Norm, TextRows
from wiring.checkpoints.states import open_states
from wiring.checkpoints.target_files import final_norm
from wiring.layers import Phase
from wiring.model.target_reference import ReferenceTarget

TINY = Path(__file__).parents[3] / "data" / "tiny"
TEXTS, LENGTH, PROMPT = 3, 120, 60


@dataclass(frozen=True)
class TinyServed:
    """reference, served [L+1, N, H] of all texts; partial [L, N, H]: boundary b+1 as rank 0 of two holds it."""

    tokens: torch.Tensor
    reference: torch.Tensor
    served: torch.Tensor
    partial: torch.Tensor
    rows: TextRows
    norm: Norm

    def phase(self, phase: Phase) -> torch.Tensor:
        """Indices of the rows of a phase."""
        here = self.rows.positions < PROMPT if phase is Phase.PREFILL else self.rows.positions >= PROMPT
        return here.nonzero()[:, 0]

    def slots(self, layout, stack=None) -> torch.Tensor:
        """Served states [N, n, H] in bfloat16."""
        stack = self.served if stack is None else stack
        return stack[list(layout)].transpose(0, 1).bfloat16()

    def compared_rows(self, index: torch.Tensor) -> dict:
        """The arguments that say which rows of the reference belong to served rows `index`."""
        served = TextRows(self.rows.positions[index], self.rows.texts[index])
        return dict(served_rows=served, reference_rows=self.rows, norm=self.norm)


def make() -> TinyServed:
    samples = iter(open_states(TINY / "states", hidden_size=64))
    texts = torch.stack([next(samples).tokens[:LENGTH] for _ in range(TEXTS)])
    full = ReferenceTarget.load(TINY / "target")
    half = ReferenceTarget.load(TINY / "target", dtype=torch.bfloat16)
    inputs = {}
    hooks = [
        layer.mlp.register_forward_pre_hook(lambda _m, args, i=i: inputs.__setitem__(i, args[0]))
        for i, layer in enumerate(full.layers)
    ]
    reference = full.forward(texts).boundaries
    for hook in hooks:
        hook.remove()
    served = half.forward(texts).boundaries.float()
    with torch.no_grad():
        missing = [
            layer.mlp(inputs[i]) - first_rank(layer.mlp)(inputs[i]) for i, layer in enumerate(full.layers)
        ]  # what the other rank holds
    weight, eps = final_norm(TINY / "target")
    return TinyServed(
        tokens=texts.flatten(),
        reference=reference.flatten(1, 2),
        served=served.flatten(1, 2),
        partial=(served[1:] - torch.stack(missing)).flatten(1, 2),
        rows=TextRows.whole([LENGTH] * TEXTS),
        norm=Norm(weight, eps),
    )


def first_rank(mlp: torch.nn.Module) -> torch.nn.Module:
    """The MLP with what rank 0 of two holds: half of the columns of each last matrix, or half of the experts.

    The sum over ranks is the whole, since the last matrix is linear.
    """
    mlp = copy.deepcopy(mlp)
    for name, weight in mlp.named_parameters():
        if name.endswith("experts.down_proj"):  # [experts, H, width]
            weight.data[len(weight) // 2 :] = 0
        elif name.endswith("down_proj.weight"):  # [H, width]
            weight.data[:, weight.shape[1] // 2 :] = 0
    return mlp

"""Muon for stacks of matrices: momentum, then the nearest half-orthogonal matrix, for all layers in one batched call.

torch.optim.Muon takes single matrices only. The target's 61 layers would be some 800 of them, each with fifteen
tiny products per step; as stacks they are sixteen. Method: Jordan et al., "Muon", 2024.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration, chosen by its authors for a steep start
_ITERATIONS = 5


def orthogonalised(stack: Tensor) -> Tensor:
    """Bring every singular value of each matrix near one; stack [..., out, in]."""
    a, b, c = _COEFFICIENTS
    x = stack / (stack.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    tall = x.shape[-2] > x.shape[-1]
    if tall:  # the small square product is the cheap one
        x = x.mT
    for _ in range(_ITERATIONS):
        square = x @ x.mT
        x = a * x + (b * square + c * (square @ square)) @ x
    return x.mT if tall else x


class StackedMuon(torch.optim.Optimizer):
    """Muon with Nesterov momentum and decoupled weight decay over parameters [..., out, in]."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.05):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                average = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
                average.lerp_(parameter.grad, 1 - momentum)
                update = orthogonalised(parameter.grad.lerp(average, momentum))
                out, into = update.shape[-2:]
                parameter.mul_(1 - lr * group["weight_decay"])
                parameter.sub_(update, alpha=lr * max(1.0, out / into) ** 0.5)

"""Detect a state between two boundaries by regressing its deviation from the nearest one on the steps of the layers.

Under tensor parallelism each rank holds a part of a layer's last sum until the all-reduce. A state captured before it
lacks the other ranks' parts: it is boundary b less a part of the step from b-1 to b, and other steps are complete.
Rounding and drift point along none of the steps around, a scale along all, a missing part along one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Deviations (root mean square over rows, relative) below one unit of bfloat16 may be rounding of the state itself.
_MIN_DEVIATION = 2.0**-8
# The share of the deviation's norm that the step must explain, and how many times more than any other step. On the tiny
# target bfloat16 kernels explain 0.06 by any step; half of a layer's MLP 0.1 to 0.8 by its own, 0.02 to 0.2 by others.
_MIN_EXPLAINED, _CLEARLY = 0.1, 2.0
_MIN_SHARE = 0.03  # of the step, from either end
_WINDOW = 8  # steps to either side
_STANDARD_ERRORS = 6.0
_BLOCK_ROWS = 64


@dataclass(frozen=True)
class Between:
    """The state is boundary `low` plus `share` of the step to boundary low + 1.

    The step explains a share `explained` of the deviation's norm, any other step at most `other`.
    """

    low: int
    share: float
    explained: float
    other: float


def between(states: Tensor, reference: Tensor, partner: Tensor, nearest: int) -> Between | None:
    """Return the step that begins or ends at boundary `nearest` and in which states [M, H] lie; None if there is none.

    `partner` [M] is the reference row of each state, -1 for none.
    """
    first, last = max(0, nearest - 1 - _WINDOW), min(len(reference) - 1, nearest + 1 + _WINDOW)
    count = last - first
    own = nearest - 1 - first  # the step that ends at the nearest boundary; -1 for the embedding
    if count < 4:
        return None  # too few other steps to compare with
    window = reference[first : last + 1]
    keep = (partner >= 0).nonzero()[:, 0]
    device = reference.device
    gram = torch.zeros(count, count, dtype=torch.float64, device=device)
    along = torch.zeros(count, dtype=torch.float64, device=device)
    total, width = 0.0, states.shape[-1]
    for rows in keep.split(_BLOCK_ROWS):
        theirs = window[:, partner[rows].to(device)].double()  # [w, m, H]
        mine = states[rows.to(states.device)].to(device, torch.float64)
        weight = 1 / theirs[nearest - first].norm(dim=-1, keepdim=True).clamp_min(1e-300)  # [m, 1]
        deviation = ((mine - theirs[nearest - first]) * weight).flatten()
        steps = ((theirs[1:] - theirs[:-1]) * weight).flatten(1)  # [count, m*H]
        gram += steps @ steps.T
        along += steps @ deviation
        total += float(deviation.square().sum())
    if not total / len(keep) > _MIN_DEVIATION**2:  # NaN too
        return None
    size = gram.diagonal().sqrt()
    # A ridge keeps the shares of identity layers, which repeat each other, finite.
    ridge = torch.diag(gram.diagonal() * 1e-6 + gram.diagonal().max() * 1e-12)
    inverse = torch.linalg.inv(gram + ridge)
    taken = inverse @ along  # share of each step that the state has beyond the nearest boundary
    left = max(total - float(taken @ along), 0.0) / (len(keep) * width)
    error = (inverse.diagonal() * left).sqrt()
    explained = (taken * size).abs() / total**0.5
    places = [place for place in (own, own + 1) if 0 <= place < count]
    place = max(places, key=lambda p: float(explained[p]))
    share = float(taken[place]) + (1.0 if place == own else 0.0)
    others = explained.clone()
    others[place] = 0
    clear = float(explained[place]) >= max(_MIN_EXPLAINED, _CLEARLY * float(others.max()))
    inside = _MIN_SHARE <= share <= 1 - _MIN_SHARE
    certain = abs(float(taken[place])) >= _STANDARD_ERRORS * float(error[place])
    if not (clear and inside and certain):
        return None
    return Between(first + place, share, float(explained[place]), float(others.max()))

"""Is a saved last hidden state normed? Decided by which reading predicts the text.

The target's choice after position j is usually the text's token j+1 (the text was written by a model of its kind).
`lm_head` is tried on the state as it is and on the state after the final norm. The reading that agrees with the text
clearly more often is right. A tie stays undecided.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Literal

import torch

from wiring.accuracy.target_head import TargetHead, choices
from wiring.errors import WiringError

if TYPE_CHECKING:
    from wiring.checkpoints.states import StateSample

_SEQUENCES, _ROWS = 16, 512  # at most; labels of a few thousand tokens separate the readings
_CLEARLY = 4.0  # standard errors between the two shares


@dataclass(frozen=True)
class NormState:
    """The verdict and the two shares of `rows` tokens that each reading predicts."""

    state: Literal["post", "pre", "undecided"]
    rows: int
    as_stored: float
    after_norm: float

    @property
    def evidence(self) -> str:
        """The verdict's grounds in words."""
        return (
            f"lm_head on the stored state predicts {self.as_stored:.1%} of {self.rows} next tokens, "
            f"after the final norm {self.after_norm:.1%}"
        )


def decide_norm(samples: Iterable[StateSample], head: TargetHead) -> NormState:
    """Try both readings on up to 16 sequences. Raises WiringError when the target's norm is not known.

    Where both readings choose the same tokens throughout, the state is called "post": labels do not depend on it.
    """
    if head.norm is None:
        raise WiringError(
            "whether the saved states are normed cannot be tested without the target's final norm",
            expected="model.norm.weight of the target",
            remedy="Say --last-hidden post or --last-hidden pre",
        )
    rows, only_stored, only_normed, both, same = 0, 0, 0, 0, True
    for sample in islice(samples, _SEQUENCES):
        states, text = sample.last_hidden[:-1][:_ROWS], sample.tokens[1 : _ROWS + 1].to(head.weight.device)
        chosen = {}
        for state in ("post", "pre"):
            normed = replace(head, state=state).normed(sample, states)
            chosen[state] = choices(normed, head.weight)
        stored, normed = chosen["post"] == text, chosen["pre"] == text
        same = same and bool(torch.equal(chosen["post"], chosen["pre"]))
        rows += len(text)
        only_stored += int((stored & ~normed).sum())
        only_normed += int((normed & ~stored).sum())
        both += int((stored & normed).sum())
    if not rows:
        raise WiringError("there is no text to test the norm state on", expected="sequences of two tokens or more")
    state: Literal["post", "pre", "undecided"] = "undecided"
    differ = only_stored + only_normed
    # Rows where both are right or both wrong say nothing; among the rest a fair coin is the null hypothesis.
    if same:
        state = "post"
    elif abs(only_stored - only_normed) > _CLEARLY * differ**0.5:
        state = "post" if only_stored > only_normed else "pre"
    return NormState(state, rows, (both + only_stored) / rows, (both + only_normed) / rows)

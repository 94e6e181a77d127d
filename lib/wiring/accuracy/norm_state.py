"""Decide whether a saved last hidden state is normed, by which interpretation predicts the text.

The target's choice after position j is usually the text's token j+1. `lm_head` is applied to the stored state and to
the state after the final norm; the one that agrees with the text significantly more often is right.
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

_SEQUENCES, _ROWS = 16, 512  # at most; labels of a few thousand tokens are enough to decide
_SIGNIFICANT = 4.0  # standard errors


@dataclass(frozen=True)
class NormState:
    """The decision, and the share of `rows` next tokens that is predicted from the stored and from the normed state."""

    state: Literal["post", "pre", "undecided"]
    rows: int
    as_stored: float
    after_norm: float

    @property
    def evidence(self) -> str:
        """Return the two shares in words."""
        return (
            f"lm_head on the stored state predicts {self.as_stored:.1%} of {self.rows} next tokens, "
            f"after the final norm {self.after_norm:.1%}"
        )


def decide_norm(samples: Iterable[StateSample], head: TargetHead) -> NormState:
    """Decide on up to 16 sequences; "post" if both choices are equal throughout: labels then do not depend on it.

    Raises WiringError when the target's norm is not known, and for sequences of fewer than two tokens.
    """
    if head.norm is None:
        raise WiringError(
            "the norm state of the saved states cannot be tested without the target's final norm",
            code="final-norm-unknown",
            where="--target",
            expected="model.norm.weight of the target",
            remedy="Pass --last-hidden post or --last-hidden pre",
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
        raise WiringError(
            "no text to test the norm state on", code="no-text", expected="sequences of two tokens or more"
        )
    state: Literal["post", "pre", "undecided"] = "undecided"
    differ = only_stored + only_normed
    # Sign test on the rows where exactly one is right (McNemar).
    if same:
        state = "post"
    elif abs(only_stored - only_normed) > _SIGNIFICANT * differ**0.5:
        state = "post" if only_stored > only_normed else "pre"
    return NormState(state, rows, (both + only_stored) / rows, (both + only_normed) / rows)

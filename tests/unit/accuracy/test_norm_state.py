"""The norm state of a saved last hidden state: found where the text decides it, left open where it does not."""

import pytest
import torch

from wiring.accuracy.norm_state import decide_norm
from wiring.accuracy.target_head import TargetHead
from wiring.checkpoints.states import StateSample
from wiring.errors import WiringError

VOCAB, WIDTH, ROWS = 50, 16, 400
G = torch.Generator().manual_seed(1)
HEAD = torch.randn(VOCAB, WIDTH, generator=G)
NORM = torch.exp(torch.randn(WIDTH, generator=G))  # uneven: the two readings choose different tokens


def written(normed: bool, right: float = 0.8):
    """A text that follows the target's choice in a share of `right` tokens, with states in one of the two forms."""
    states = torch.randn(ROWS, WIDTH, generator=G)
    final = states / (states.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * NORM
    choice = (final @ HEAD.T).argmax(-1)
    random = torch.randint(0, VOCAB, (ROWS,), generator=G)
    following = torch.where(torch.rand(ROWS, generator=G) < right, choice, random)
    tokens = torch.cat([random[:1], following[:-1]])
    return StateSample(
        source="s",
        tokens=tokens,
        loss_mask=torch.ones(ROWS, dtype=torch.int64),
        states=torch.zeros(ROWS, 1, WIDTH),
        boundaries=(0,),
        last_hidden=final if normed else states,
        norm="undecided",
    )


@pytest.mark.parametrize("normed", [True, False])
def test_the_reading_that_predicts_the_text_is_found(normed):
    found = decide_norm([written(normed), written(normed)], TargetHead(HEAD, NORM, 1e-6))
    assert found.state == ("post" if normed else "pre")
    assert found.rows == 2 * (ROWS - 1)
    better, worse = (found.as_stored, found.after_norm) if normed else (found.after_norm, found.as_stored)
    assert better == pytest.approx(0.8 + 0.2 / VOCAB, abs=0.05) and worse < 0.6


def test_a_text_of_random_tokens_leaves_it_undecided():
    found = decide_norm([written(True, right=0.0)], TargetHead(HEAD, NORM, 1e-6))
    assert found.state == "undecided"
    assert "predicts" in found.evidence


def test_where_the_norm_changes_no_choice_it_does_not_matter():
    assert decide_norm([written(True)], TargetHead(HEAD, torch.ones(WIDTH), 1e-6)).state == "post"


def test_without_the_norm_it_is_not_guessed():
    with pytest.raises(WiringError) as error:
        decide_norm([written(True)], TargetHead(HEAD))
    assert error.value.code == "final-norm-unknown"

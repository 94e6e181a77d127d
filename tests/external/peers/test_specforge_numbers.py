"""SpecForge 0.2.0 and the workbook say the same of the same files: counts exactly, logits to 1e-4 in float32.

SpecForge's model, metrics, file formats and evaluator run on the CPU as they are, but for the loss, whose kernel is
Triton (a torch expression stands in; no count depends on it). What SpecForge 0.2.0 cannot hold, so that it is not
compared here: more than one draft layer, other than three slots, biases, norm_before_residual, norm_before_fc.
"""

from __future__ import annotations

import pytest
from our_side import TOLERANCE, read_ours, with_other_config, worst_error
from peer_files import read_result
from specforge_drafts import CASES, LAYOUT

from wiring.accuracy.evaluation import accuracy_by_depth
from wiring.checkpoints.states import open_states
from wiring.checkpoints.target_files import HEAD, read_tensor


@pytest.mark.parametrize("name", CASES)
def test_every_count_is_specforges(specforge, name):
    case, _, _ = specforge[name]
    theirs, _ = read_result(case)
    draft, producer = read_ours(theirs["draft"], case / "target")
    states = open_states(case / "states", hidden_size=CASES[name].target_width, stored=LAYOUT)
    head = read_tensor(case / "target", HEAD)
    ours = accuracy_by_depth(draft, states, LAYOUT, CASES[name].steps, head, rule="specforge", batch=3)
    assert producer == "specforge"
    assert [depth.total for depth in ours.depths] == theirs["total"]
    assert [depth.correct for depth in ours.depths] == theirs["correct"]
    assert [depth.accuracy for depth in ours.depths] == pytest.approx(theirs["accuracy"])
    assert ours.accept_length == pytest.approx(theirs["accept_length"])
    shares = [correct / total for correct, total in zip(theirs["correct"], theirs["total"], strict=True)]
    assert 0.2 < shares[0] < 0.99 and all(shares)  # a draft that is always or never right would show nothing


@pytest.mark.parametrize("name", CASES)
def test_logits_are_specforges(specforge, name):
    case, _, texts = specforge[name]
    theirs, logits = read_result(case)
    draft, _ = read_ours(theirs["draft"], case / "target")
    assert max(worst_error(draft, texts, logits, CASES[name].steps)) < TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_another_variant_would_have_been_noticed(specforge, name, tmp_path):
    case, _, texts = specforge[name]
    theirs, logits = read_result(case)
    other, _ = read_ours(with_other_config(theirs["draft"], CASES[name].other, tmp_path / "draft"), case / "target")
    assert max(worst_error(other, texts, logits, CASES[name].steps)) > 10 * TOLERANCE


def test_the_norm_that_serving_feeds_back_is_not_in_specforges_numbers(specforge, tmp_path):
    """norm_output means "norm before lm_head" to SpecForge 0.2.0 and "feed the normed state back" to SGLang.

    A draft that says nothing is the first to SpecForge; read as SGLang reads `true`, step 0 agrees and the rest not.
    """
    from wiring.checkpoints.draft_files import read_draft
    from wiring.model.eagle3 import Eagle3Draft

    case, target, texts = specforge["plain"]
    theirs, logits = read_result(case)
    folder = with_other_config(theirs["draft"], {"norm_output": True}, tmp_path / "draft")
    as_trained, _ = read_ours(folder, case / "target")
    as_served = Eagle3Draft.from_checkpoint(read_draft(folder, norm_output="feedback"), target.embedding)
    assert max(worst_error(as_trained, texts, logits, CASES["plain"].steps)) < TOLERANCE
    first, *later = worst_error(as_served, texts, logits, CASES["plain"].steps)
    assert first < TOLERANCE and min(later) > 10 * TOLERANCE

"""speculators 0.9.0 and the workbook say the same of the same files: counts exactly, logits to 1e-4 in float32.

speculators' model, metrics, file formats, shift and collate functions run on the CPU as they are, with its own "eager"
attention and loss: the fused loss is Triton, flex attention is slow there. One document is one batch, without
padding. speculators trains on packed batches, and there the labels of a document's last rows at steps >= 1 are the
next document's. Its full counts are the same all the same, as long as every document begins with as many tokens that
are not trained on as there are steps (a prompt does). Its conditional totals count those rows besides, so that its
conditional accuracy in training is a little lower than that of the same documents one by one.
"""

from __future__ import annotations

import pytest
import torch
from our_side import TOLERANCE, read_ours, with_other_config, worst_error
from peer_files import read_result
from speculators_drafts import CASES

from wiring.accuracy.evaluation import accuracy_by_depth
from wiring.accuracy.target_head import TargetHead
from wiring.checkpoints.states import open_states
from wiring.checkpoints.target_files import HEAD, read_tensor


def ours(case, name, preset):
    """Our report on a case by a preset, and speculators' counts."""
    theirs, _ = read_result(case)
    draft, producer = read_ours(theirs["draft"], case / "target")
    assert producer == "speculators"
    states = open_states(case / "states", hidden_size=draft.config.target_hidden_size, stored=CASES[name].ids)
    eps = CASES[name].layer.get("rms_norm_eps", 1e-5)  # speculators norms the target's states with the draft's eps
    head = TargetHead(read_tensor(case / "target", HEAD), read_tensor(case / "target", "model.norm.weight"), eps)
    return accuracy_by_depth(draft, states, CASES[name].ids, CASES[name].steps, head, rule=preset, batch=3), theirs


@pytest.mark.parametrize("kind", ["full", "cond"])
@pytest.mark.parametrize("name", CASES)
def test_every_count_is_speculators(speculators, name, kind):
    report, theirs = ours(speculators[name][0], name, f"speculators-{kind}")
    assert [depth.total for depth in report.depths] == theirs[f"{kind}_total"]
    assert [depth.correct for depth in report.depths] == theirs[f"{kind}_correct"]
    shares = [c / t for c, t in zip(theirs[f"{kind}_correct"], theirs[f"{kind}_total"], strict=True)]
    assert 0.2 < shares[0] < 0.99 and all(shares)  # a draft that is always or never right would show nothing


@pytest.mark.parametrize("name", CASES)
def test_logits_are_speculators(speculators, name):
    case, _, texts = speculators[name]
    theirs, logits = read_result(case)
    draft, _ = read_ours(theirs["draft"], case / "target")
    assert max(worst_error(draft, texts, logits, CASES[name].steps)) < TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_another_variant_would_have_been_noticed(speculators, name, tmp_path):
    case, _, texts = speculators[name]
    theirs, logits = read_result(case)
    other, _ = read_ours(with_other_config(theirs["draft"], CASES[name].other, tmp_path / "draft"), case / "target")
    assert max(worst_error(other, texts, logits, CASES[name].steps)) > 10 * TOLERANCE


@pytest.mark.parametrize("name", [name for name in CASES if name != "dynamic-rope"])  # its base follows the batch
def test_a_packed_batch_has_the_same_full_counts_after_prompts(speculators, name):
    report, theirs = ours(speculators[name][0], name, "speculators-full")
    assert [depth.total for depth in report.depths] == theirs["packed_total"]
    assert [depth.correct for depth in report.depths] == theirs["packed_correct"]
    given, _ = ours(speculators[name][0], name, "speculators-cond")
    more = [packed - depth.total for packed, depth in zip(theirs["packed_cond_total"], given.depths, strict=True)]
    assert more[0] == 0 and min(more) >= 0 and max(more) > 0


def test_a_draft_keeps_the_embedding_that_it_trained(speculators):
    case, target, texts = speculators["four-slots-full-vocabulary-llama3-rope"]
    theirs, logits = read_result(case)
    draft, _ = read_ours(theirs["draft"], case / "target")
    assert not torch.equal(draft.embedding, target.embedding)
    draft.embedding = target.embedding
    assert max(worst_error(draft, texts, logits, 1)) > 10 * TOLERANCE

"""The stacked target computes what transformers' DeepseekV3ForCausalLM computes from the exported weights."""

import random

import pytest
import torch
from tiny import corpus
from tiny.config import TargetSizes
from tiny.export import load_target, write_target
from tiny.target_model import RESIDUAL_GAIN, StackedTarget
from tiny.target_train import as_batch

from wiring.model.target_reference import ReferenceTarget

TAPPED = (0, 3, 31, 59, 61)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fresh_target")
    target = StackedTarget(TargetSizes(), seed=3)
    with torch.no_grad():  # as loud as after training, so that every layer matters to the logits
        for name in ("attention_out", "down", "shared_down", "expert_down"):
            getattr(target, name).mul_(0.5 / RESIDUAL_GAIN)
        target.head.mul_(30)
        target.final_norm.copy_(torch.linspace(0.5, 1.5, 64))
    write_target(target, folder, torch.float32)
    return target, folder


def test_logits_and_boundaries_equal_transformers_in_float32(pair):
    target, folder = pair
    rng = random.Random(1)
    tokens, _ = as_batch([corpus.draw(rng, 160, "training") for _ in range(2)])
    with torch.no_grad():
        logits, last, states = target(tokens, TAPPED)
    theirs = ReferenceTarget.load(folder).forward(tokens)
    assert logits.std() > 0.5
    assert (logits - theirs.logits).abs().max() < 2e-4
    assert (last - theirs.last_hidden).abs().max() < 2e-4
    for boundary in TAPPED:
        assert (states[boundary] - theirs.boundaries[boundary]).abs().max() < 2e-4 * states[boundary].std()


def test_rounding_and_reading_back_keeps_every_weight(pair, tmp_path):
    target, folder = pair
    again = load_target(folder, target.sizes)
    for (name, ours), (_, theirs) in zip(target.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    write_target(target, tmp_path)  # bfloat16: load_target must give the rounded weights
    rounded = load_target(tmp_path, target.sizes)
    assert torch.equal(rounded.q_up, target.q_up.bfloat16().float())
    assert not torch.equal(rounded.q_up, target.q_up)

"""A draft that does not fit its target is recognized before a server is started."""

from pathlib import Path

import pytest
import torch

from wiring.checkpoints.target_files import TargetConfig
from wiring.lint.fit import check_fit

TARGET = TargetConfig(Path("target"), "DeepseekV3ForCausalLM", 61, 64, 320, {})
DRAFT = {
    "hidden_size": 64,
    "vocab_size": 320,
    "draft_vocab_size": 96,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 31, 59]},
}


def weights(**changes):
    good = {"fc.weight": torch.zeros(64, 192), "lm_head.weight": torch.zeros(96, 64), "d2t": torch.arange(96) * 2}
    return good | {name.replace("__", "."): value for name, value in changes.items()}


def test_a_pair_that_fits_has_no_problems():
    assert check_fit(TARGET, DRAFT) == []
    assert check_fit(TARGET, DRAFT, weights()) == []
    no_map = {k: v for k, v in DRAFT.items() if k != "draft_vocab_size"}
    assert check_fit(TARGET, no_map, {"fc.weight": torch.zeros(64, 192), "lm_head.weight": torch.zeros(320, 64)}) == []


@pytest.mark.parametrize(
    ("config", "tensors", "subject", "values"),
    [
        ({"hidden_size": 128}, None, "hidden size", ("128", "64")),
        ({"target_hidden_size": 128}, None, "hidden size", ("128", "64")),
        ({"vocab_size": 32000}, None, "vocabulary", ("32000", "320")),
        ({"num_aux_hidden_states": 4}, None, "layer ids (3, 31, 59) on a target of 61 layers", ("3", "4")),
        ({}, weights(fc__weight=torch.zeros(64, 256)), "slot count", ("4", "3")),
        ({}, weights(fc__weight=torch.zeros(64, 200)), "slot count", ("200", "64")),
        ({}, weights(lm_head__weight=torch.zeros(90, 64)), "vocabulary", ("90", "96")),
        ({}, weights(d2t=torch.arange(96) * 3), "vocabulary", ("16", "319", "80 -> 320")),
        ({}, weights(d2t=-torch.arange(96)), "vocabulary", ("96", "1")),
        ({}, weights(d2t=torch.zeros(90, dtype=torch.int64)), "vocabulary", ("[90]", "[96]")),
        ({}, {"fc.weight": torch.zeros(64, 192)}, "vocabulary", ("96 of 320", "d2t")),
    ],
)
def test_one_mismatch_is_one_problem(config, tensors, subject, values):
    (found,) = check_fit(TARGET, DRAFT | config, tensors)
    assert found.subject == subject and all(value in found.evidence for value in values), found
    assert found.by_rule == subject.startswith("layer ids")


@pytest.mark.parametrize("ids", [[3, 31, 61], [3, 3, 31]])
def test_ids_under_which_the_server_captures_too_few_states(ids):
    (found,) = check_fit(TARGET, DRAFT | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}})
    assert found.by_rule and "2 of 3" in found.evidence


def test_a_target_without_a_known_rule_is_checked_by_size_alone():
    other = TargetConfig(Path("target"), "SomeNewForCausalLM", 61, 64, 320, {})
    assert check_fit(other, DRAFT, weights()) == []

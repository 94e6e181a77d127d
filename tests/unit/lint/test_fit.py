"""A draft that does not fit its target is told apart before a server is started."""

import re
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
    ("config", "tensors", "problem"),
    [
        ({"hidden_size": 128}, None, "hidden size: the draft takes states of width 128, the target's are 64 wide"),
        (
            {"target_hidden_size": 128},
            None,
            "hidden size: the draft takes states of width 128, the target's are 64 wide",
        ),
        ({"vocab_size": 32000}, None, "vocabulary: the draft's vocabulary is 32000 ids, the target's 320"),
        ({"num_aux_hidden_states": 4}, None, r"layer ids \(3, 31, 59\) on .* 61 layers: 3 states .* fc takes 4"),
        ({}, weights(fc__weight=torch.zeros(64, 256)), "slot count: fc takes 4 states, 3 are fed"),
        ({}, weights(fc__weight=torch.zeros(64, 200)), "slot count: fc takes 200 features, .*of width 64"),
        ({}, weights(lm_head__weight=torch.zeros(90, 64)), "vocabulary: lm_head has 90 rows, draft_vocab_size is 96"),
        (
            {},
            weights(d2t=torch.arange(96) * 3),
            "vocabulary: 16 draft ids reach outside the target's 0 to 319, the first 80 -> 320",
        ),
        ({}, weights(d2t=-torch.arange(96)), "vocabulary: 96 draft ids reach only 1 different target ids"),
        ({}, weights(d2t=torch.zeros(90, dtype=torch.int64)), r"vocabulary: d2t has shape \[90\], expected \[96\]"),
        ({}, {"fc.weight": torch.zeros(64, 192)}, "vocabulary: 96 of 320 ids, but no d2t"),
    ],
)
def test_one_mismatch_is_one_problem(config, tensors, problem):
    (found,) = check_fit(TARGET, DRAFT | config, tensors)
    assert re.search(problem, str(found)), found


@pytest.mark.parametrize("ids", [[3, 31, 61], [3, 3, 31]])
def test_ids_under_which_the_server_captures_too_few_states(ids):
    (found,) = check_fit(TARGET, DRAFT | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}})
    assert "only 2 of 3 states are captured" in found


def test_a_target_without_a_known_rule_is_checked_by_size_alone():
    other = TargetConfig(Path("target"), "SomeNewForCausalLM", 61, 64, 320, {})
    assert check_fit(other, DRAFT, weights()) == []

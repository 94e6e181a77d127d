"""A recorded capture of the tiny pair, told without a server: its layout in each phase, and its accuracy beside T."""

from pathlib import Path

import pytest
import torch

from wiring.capture.matching import Norm
from wiring.checkpoints.draft_files import read_draft
from wiring.checkpoints.target_files import final_norm, read_tensor
from wiring.errors import WiringError
from wiring.layers import Phase
from wiring.model.eagle3 import Eagle3Draft
from wiring.model.target_reference import ReferenceTarget
from wiring.workbook import captured_states as cap
from wiring.workbook.captured_accuracy import accuracy_on_captured, compare_phases, phase_differences, served_texts

DATA = Path(__file__).parents[3] / "data"
RECORDED = DATA / "recorded" / "cpu-tiny"
TRAINED = (0, 3, 31)


@pytest.fixture(scope="module")
def reference():
    torch.set_num_threads(1)
    return ReferenceTarget.load(DATA / "tiny" / "target")


@pytest.fixture(scope="module")
def draft():
    folder = DATA / "tiny" / "target"
    ends = (read_tensor(folder, name) for name in ("model.embed_tokens.weight", "lm_head.weight"))
    return Eagle3Draft.from_checkpoint(read_draft(DATA / "tiny" / "draft"), *ends)


@pytest.mark.parametrize(
    ("name", "names", "layout"),
    [
        ("03_as_served", ("moved by one slot",), (3, 31, 59)),
        ("04_config", ("same",), (0, 3, 31)),
    ],
)
def test_a_recorded_capture_is_named_phase_by_phase(reference, name, names, layout):
    """The layouts that SGLang 0.5.23 serves for these drafts by its rule, `wiring.engines.sglang`."""
    captured = cap.load(RECORDED / f"{name}.safetensors")
    found = compare_phases(captured, reference, Norm(*final_norm(DATA / "tiny" / "target")))
    assert {Phase.PREFILL, Phase.VERIFY} <= set(found)
    for phase, difference in phase_differences(TRAINED, found, reference.num_layers).items():
        assert (difference.served, difference.names) == (layout, names), phase
        assert found[phase].layout == layout


def test_served_states_in_the_wrong_slots_cost_the_accuracy_and_right_ones_do_not(reference, draft):
    wrong = accuracy_on_captured(draft, cap.load(RECORDED / "03_as_served.safetensors"), reference, TRAINED, 2)
    right = accuracy_on_captured(draft, cap.load(RECORDED / "04_config.safetensors"), reference, TRAINED, 2)
    for depth in range(2):
        bad, good = wrong.depths[depth], right.depths[depth]
        assert bad.difference_high < -0.2 and bad.served <= 0.35 and bad.trained >= 0.5
        assert abs(good.served - good.trained) <= 0.1 and good.difference_low <= 0 <= good.difference_high
        assert min(good.rows, bad.rows) >= 50


def test_the_texts_hold_what_the_draft_was_fed(reference):
    captured = cap.load(RECORDED / "04_config.safetensors")
    for request, text in zip(captured, served_texts(captured, reference, TRAINED), strict=True):
        assert len(text.tokens) >= request.prompt_len
        assert text.loss_mask[: request.prompt_len].sum() == 0 and text.loss_mask[request.prompt_len :].all()
        for phase in (Phase.PREFILL, Phase.VERIFY):
            for position, states in zip(request.positions[phase], request.states[phase], strict=True):
                if position < len(text.served):
                    assert torch.equal(text.served[position].flatten(), states)
        assert served_texts(captured[:1], reference, TRAINED, "all")[0].loss_mask.all()


def test_another_number_of_slots_is_refused(reference):
    captured = cap.load(RECORDED / "04_config.safetensors")
    with pytest.raises(WiringError) as error:
        served_texts(captured, reference, (0, 3))
    assert (error.value.code, error.value.found) == ("served-slot-count", "3")

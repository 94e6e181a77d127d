"""Layouts planted on the tiny pair, each named exactly in each phase; the healthy one gives no finding."""

import pytest
import tiny_served
import torch

from wiring.capture.matching import NORMED, RAW, compare_slots, diff_layouts
from wiring.engines.faults import FAULTS
from wiring.layers import Phase

TRAINED = (0, 3, 31)
PHASES = (Phase.PREFILL, Phase.VERIFY)


@pytest.fixture(scope="module")
def tiny():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tiny_served.make()
    torch.set_num_threads(before)


def compare(tiny, states, index, **settings):
    return compare_slots(states, tiny.reference, **tiny.compared_rows(index), **settings)


def named(tiny, layout, trained=TRAINED):
    """The difference in each phase when all phases serve `layout`."""
    out = []
    for phase in PHASES:
        index = tiny.phase(phase)
        comparison = compare(tiny, tiny.slots(layout)[index], index)
        assert comparison.layout == layout
        assert {(m.shift, m.transform, m.verdict) for m in comparison.matches} == {(0, RAW, "equals")}
        out.append(diff_layouts(trained, comparison.matches))
    return out


@pytest.mark.parametrize(
    ("layout", "names", "kinds"),
    [
        ((0, 3, 31), ("same",), ()),
        ((1, 4, 32), ("off by one up",), (2,)),
        ((0, 2, 30), ("off by one down",), (2,)),
        ((0, 3, 32), ("off by one up",), (2,)),
        ((3, 31, 0), ("rotated", "embedding in the wrong slot"), (3,)),
        ((3, 31, 59), ("moved by one slot",), (1,)),
        ((0, 31, 3), ("swapped",), (3,)),
        ((2, 30, 58), ("default layers",), (1,)),
        ((35, 36, 37), ("other layers",), (1,)),  # neighbors that are most alike
        ((3, 0, 31), ("swapped", "embedding in the wrong slot"), (3,)),
    ],
)
def test_a_layout_is_named(tiny, layout, names, kinds):
    for difference in named(tiny, layout):
        assert (difference.served, difference.names, difference.kinds) == (layout, names, kinds)
        assert set(difference.kinds) <= set(FAULTS)


def test_one_layer_below_may_be_the_default(tiny):
    for difference in named(tiny, (2, 30, 58), trained=(3, 31, 59)):
        assert (difference.names, difference.kinds) == (("default layers", "off by one down"), (2,))


def test_states_after_the_final_norm(tiny):
    served = tiny.slots(TRAINED).float()
    rms = (served.square().mean(-1, keepdim=True) + tiny.norm.eps).sqrt()
    normed = (served / rms * tiny.norm.weight.float()).bfloat16()
    for phase in PHASES:
        index = tiny.phase(phase)
        comparison = compare(tiny, normed[index], index)
        assert comparison.layout == TRAINED
        assert {(m.shift, m.transform) for m in comparison.matches} == {(0, NORMED)}
        difference = diff_layouts(TRAINED, comparison.matches)
        assert (difference.names, difference.kinds) == (("normed",), (5,))


@pytest.mark.parametrize("shift", [1, -1, 2, -2])
def test_states_of_another_token(tiny, shift):
    for phase in PHASES:
        index = tiny.phase(phase)
        at = tiny.rows.positions[index] + shift
        index = index[(at >= 0) & (at < tiny_served.LENGTH)]
        comparison = compare(tiny, tiny.slots(TRAINED)[index + shift], index)
        assert comparison.layout == TRAINED
        assert {(m.shift, m.transform) for m in comparison.matches} == {(shift, RAW)}
        difference = diff_layouts(TRAINED, comparison.matches)
        assert (difference.names, difference.kinds) == ((f"shifted {shift:+d}",), (14,))


@pytest.mark.parametrize("layout", [(0, 3, 31), (3, 31, 59)])  # layer 58 is a mixture of experts
def test_one_rank_of_two_before_the_sum(tiny, layout):
    """The embedding is summed over ranks before any layer; the output of a layer's MLP is not."""
    slots = [tiny.served[0] if b == 0 else tiny.partial[b - 1] for b in layout]
    states = torch.stack(slots, 1).bfloat16()
    for phase in PHASES:
        index = tiny.phase(phase)
        comparison = compare(tiny, states[index], index)
        difference = diff_layouts(layout, comparison.matches)
        assert (difference.served, difference.names, difference.kinds) == (layout, ("partial sum",), (4,))
        for boundary, match in zip(layout, comparison.matches, strict=True):
            if boundary:
                assert (match.verdict, match.boundary, match.between) == ("between", None, (boundary - 1, boundary))
                # The share in closed form: the present part of the step, projected on the step.
                end = tiny.reference[boundary, index].double()
                step = end - tiny.reference[boundary - 1, index]
                weight = end.square().sum(-1).reciprocal()
                there = states[index, layout.index(boundary)].double() - tiny.reference[boundary - 1, index]
                share = (weight * (there * step).sum(-1)).sum() / (weight * step.square().sum(-1)).sum()
                assert match.share == pytest.approx(float(share), abs=0.08)
            else:
                assert (match.verdict, match.boundary) == ("equals", 0)


def test_each_phase_is_named_by_itself(tiny):
    """Verify graphs captured on the default layers: the prompt is as trained, the answer is not."""
    layouts = {Phase.PREFILL: TRAINED, Phase.VERIFY: (2, 30, 58)}
    found = {}
    for phase, layout in layouts.items():
        index = tiny.phase(phase)
        found[phase] = diff_layouts(TRAINED, compare(tiny, tiny.slots(layout)[index], index).matches)
    assert found[Phase.PREFILL].names == ("same",) and found[Phase.PREFILL].kinds == ()
    assert found[Phase.VERIFY].names == ("default layers",) and found[Phase.VERIFY].kinds == (1,)


def test_every_boundary_of_a_healthy_server_is_recognized(tiny):
    """All 62 at once: no neighbor is confused, and rounding alone is never a partial sum or drift."""
    comparison = compare(tiny, tiny.slots(range(62)), torch.arange(len(tiny.tokens)))
    assert comparison.layout == tuple(range(62)), [m.reason for m in comparison.matches if m.verdict != "equals"]


@pytest.mark.parametrize("top", [0.2, 0.6])
def test_noise_that_grows_with_depth_is_drift(tiny, top):
    generator = torch.Generator().manual_seed(7)
    states = tiny.slots((3, 31, 59)).float()
    size = states.norm(dim=-1, keepdim=True) / states.shape[-1] ** 0.5
    amount = torch.tensor([3, 31, 59])[:, None] / 61 * top
    states = (states + amount * size * torch.randn(states.shape, generator=generator)).bfloat16()
    for phase in PHASES:
        index = tiny.phase(phase)
        comparison = compare(tiny, states[index], index)
        assert [m.verdict for m in comparison.matches] == ["equals", "drift", "drift"]
        for boundary, match in zip((3, 31, 59), comparison.matches, strict=True):
            assert match.nearest == boundary
            assert match.errors[boundary] == pytest.approx(boundary / 61 * top, rel=0.2)
        difference = diff_layouts((3, 31, 59), comparison.matches)
        assert (difference.names, difference.kinds) == (("drift",), (6,))
        assert difference.served == (3, 31, 59)


def test_layers_that_do_nothing_leave_a_slot_undecided(tiny):
    """Boundary 31 repeats boundary 30 exactly: the slot holds one of them, and which is unknown."""
    reference = tiny.reference.clone()
    reference[31] = reference[30]
    index = tiny.phase(Phase.PREFILL)
    comparison = compare_slots(tiny.slots((0, 3, 30))[index], reference, **tiny.compared_rows(index))
    assert [m.verdict for m in comparison.matches] == ["equals", "equals", "undecided"]
    assert comparison.matches[2].alike == (30, 31)
    difference = diff_layouts(TRAINED, comparison.matches)
    assert (difference.served, difference.names, difference.kinds) == ((0, 3, None), ("undecided",), ())

"""Slot matching: layouts planted on a random residual stream come back; what cannot be told apart is left open."""

import pytest
import torch

from wiring.errors import WiringError
from wiring.offline.matching import error_curves, match_slots, matched_layout


def stream(layers=20, rows=40, width=32, seed=0, step=0.5):
    """A random residual stream [L+1, M, H]: each layer adds `step` of the embedding's size."""
    g = torch.Generator().manual_seed(seed)
    parts = torch.randn(layers + 1, rows, width, generator=g)
    parts[1:] *= step
    return parts.cumsum(0)


def served(reference, layout):
    return reference[list(layout)].transpose(0, 1)


@pytest.mark.parametrize("layout", [(0, 3, 12), (3, 12, 19), (12, 0, 3), (3, 3, 12), (20,), (0, 1, 2, 3)])
@pytest.mark.parametrize("kind", ["exact", "bfloat16"])
def test_planted_layouts_come_back(layout, kind):
    reference = stream()
    states = served(reference, layout)
    matches = match_slots(states.bfloat16() if kind == "bfloat16" else states, reference)
    assert matched_layout(matches) == layout
    for i, match in enumerate(matches):
        assert (match.slot, match.verdict) == (i, "equals")
        distances = (states[:, i] - reference).norm(dim=-1) / reference.norm(dim=-1)  # [L+1, M]
        worst = distances.max(1).values
        worst[layout[i]] = torch.inf
        assert match.runner_up == int(worst.argmin())
        assert match.runner_up_error == pytest.approx(float(worst.min()), rel=0.05)
        assert match.relative_error <= (2**-8 if kind == "bfloat16" else 0)
        assert match.null_error > 0.5 and match.cosine > 0.9999


def test_a_different_engine_may_be_off_by_a_little_but_not_by_half_a_layer():
    reference = stream(step=0.3)
    g = torch.Generator().manual_seed(1)
    noise = torch.randn(reference.shape[1:], generator=g)
    noise /= noise.norm(dim=-1, keepdim=True)
    size = reference[5].norm(dim=-1, keepdim=True)
    near = (reference[5] + 0.02 * size * noise)[:, None]
    assert match_slots(near, reference)[0].boundary == 5
    assert match_slots(near, reference)[0].relative_error == pytest.approx(0.02, rel=1e-3)
    far = (reference[5] + 0.12 * size * noise)[:, None]
    (match,) = match_slots(far, reference)
    assert match.boundary is None and match.verdict == "undecided"
    assert "parallel to boundary 5 but 1.0" in match.reason or "no boundary is near" in match.reason


def test_unrelated_states_are_undecided():
    (match,) = match_slots(torch.randn(40, 1, 32, generator=torch.Generator().manual_seed(5)), stream())
    assert match.boundary is None and "no boundary is near" in match.reason
    assert matched_layout((match,)) is None


def test_neighbours_that_are_alike_are_both_named():
    reference = stream()
    reference[8] = reference[7] * (1 + 1e-3)
    states = (reference[7] * (1 + 6e-4))[:, None]
    (match,) = match_slots(states, reference)
    assert match.verdict == "undecided" and match.boundary is None
    assert "boundaries 8 and 7 are too alike" in match.reason
    reference[8] = reference[7]
    (match,) = match_slots(served(reference, (7,)), reference)
    assert "boundaries 7 and 8 are too alike" in match.reason


@pytest.mark.parametrize(("change", "reason"), [
    (lambda x: x * 0, "all zeros"),
    (lambda x: x * 50, "parallel to boundary 6 but 50 times as long"),
    (lambda x: x.roll(1, 0), "no boundary is near"),
    (lambda x: torch.cat([x[:30], x[:10]]), "most rows equal boundary 6, but 10 of 40 do not (first: row 30)"),
    (lambda x: torch.where(torch.arange(40)[:, None, None] == 3, torch.nan, x), "holds NaN"),
])  # fmt: skip
def test_the_reason_says_what_is_off(change, reason):
    reference = stream()
    (match,) = match_slots(change(served(reference, (6,))), reference)
    assert match.verdict == "undecided" and reason in match.reason, match.reason


def test_states_that_do_not_depend_on_the_position_prove_nothing():
    reference = stream()[:, :1].expand(-1, 40, -1)
    (match,) = match_slots(served(reference, (6,)), reference)
    assert match.verdict == "undecided" and "matches as well at wrong positions" in match.reason
    assert match.null_error == 0


def test_the_null_is_seeded():
    reference = stream()
    states = served(reference, (3, 9))
    assert match_slots(states, reference, seed=4) == match_slots(states, reference, seed=4)
    assert match_slots(states, reference, seed=4)[0].null_error != match_slots(states, reference, seed=5)[0].null_error


def test_shapes_that_do_not_belong_together():
    reference = stream()
    with pytest.raises(WiringError, match=r"do not belong together.*found \[40, 3, 31\] and \[21, 40, 32\]"):
        match_slots(torch.zeros(40, 3, 31), reference)
    with pytest.raises(WiringError, match="found 1 positions, 21 boundaries"):
        match_slots(torch.zeros(1, 3, 32), reference[:, :1])


def test_error_curves_are_lowest_at_the_planted_boundaries():
    reference = stream()
    curves = error_curves(served(reference, (0, 3, 11)), reference)
    assert curves.shape == (3, 21)
    assert curves.argmin(1).tolist() == [0, 3, 11]
    expected = ((reference[5] - reference[3]).norm(dim=-1) / reference[5].norm(dim=-1)).max()
    assert float(curves[1, 5]) == pytest.approx(float(expected), rel=1e-5)

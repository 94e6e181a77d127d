"""The search on random drafts with a planted layout: sums against the plain forward, symmetry, agreement, refusals."""

import itertools

import pytest
import torch
from planted_search import planted_draft, planted_material, random_stream, small_config

from wiring.accuracy.stats import paired_differences
from wiring.errors import WiringError
from wiring.layout_search import SearchData, search
from wiring.layout_search.fc_contributions import SlotContributions
from wiring.layout_search.layout_losses import CachedLosses, Extent, Losses
from wiring.layout_search.ranking import halves
from wiring.layout_search.successive_halving import all_layouts
from wiring.model.eagle3 import Eagle3Draft

LAYERS = 9
VARIANTS = {
    "plain": {},
    "fc bias": {"fc_bias": True},
    "norm over all slots": {"norm_before_fc": True},
    "norm over all slots, bias": {"norm_before_fc": True, "fc_bias": True, "rms_norm_eps": 0.1},
    "norm over each slot": {"fc_norm": True},
    "both norms": {"norm_before_fc": True, "fc_norm": True},
    "one slot": {"num_slots": 1},
    "one slot passed by fc": {"num_slots": 1, "target_hidden_size": 32},
    "two layers, windows": {"num_layers": 2, "windows": (5, None), "qk_norm": True},
}


def slow_mean(draft, data, layout, temperature=4.0):
    """The cross-entropy by the plain forward, one document at a time without its padding, log-softmax by hand."""
    total, rows = 0.0, 0
    for d, length in enumerate(data.lengths.tolist()):
        states = data.states[list(layout), d, :length].transpose(0, 1)[None]
        hidden = next(draft.hidden_steps(data.tokens[d : d + 1, : length + 1], states, 1))
        logits = draft.logits(hidden)[0].double() / temperature
        for row, label in enumerate(data.labels[d, :length].tolist()):
            if label >= 0:
                total += float(torch.logsumexp(logits[row], 0) - logits[row, label])
                rows += 1
    return total / rows


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_summed_products_are_what_fc_makes_of_the_states(changes):
    draft = planted_draft(small_config(**changes))
    states = random_stream(LAYERS, 3, 7, draft.config.target_hidden_size, 4) * 5
    slots = draft.config.num_slots
    layouts = torch.randint(0, LAYERS + 1, (11, slots), generator=torch.Generator().manual_seed(1))
    got = SlotContributions(draft, states).outputs(layouts, 2, 5)
    for layout, outputs in zip(layouts.tolist(), got, strict=True):
        want = draft.project(states[layout, :2, :5].permute(1, 2, 0, 3))
        torch.testing.assert_close(outputs, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    "changes", [{}, {"norm_before_fc": True, "fc_bias": True}, {"num_layers": 2, "windows": (5, None)}]
)
def test_the_losses_are_those_of_the_plain_forward(changes):
    draft = planted_draft(small_config(**changes))
    data = planted_material(draft, (0, 3, 8), LAYERS, 5, 12, lengths=[12, 9, 12, 4, 11])
    layouts = [(0, 3, 8), (8, 3, 0), (1, 1, 1), (9, 0, 5)]
    losses = Losses(draft, data)
    for temperature in (1.0, 4.0):
        for layout, mean in zip(layouts, losses.means(layouts, losses.whole, temperature).tolist(), strict=True):
            assert mean == pytest.approx(slow_mean(draft, data, layout, temperature), rel=1e-5)


def test_a_shorter_extent_is_the_same_rows():
    """Documents are taken from their start, so what follows a window changes nothing in it."""
    draft = planted_draft(small_config())
    data = planted_material(draft, (0, 3, 8), LAYERS, 6, 20)
    cut = SearchData(data.tokens[:4, :8], data.states[:, :4, :7], data.labels[:4, :7], torch.full((4,), 7), 0)
    losses, layouts = Losses(draft, data), [(0, 3, 8), (2, 3, 4)]
    short = losses.means(layouts, Extent(4, 7))
    torch.testing.assert_close(short, Losses(draft, cut).means(layouts, Extent(4, 7)), rtol=1e-5, atol=0)


def test_what_is_remembered_is_what_was_computed_and_is_computed_once(monkeypatch):
    draft = planted_draft(small_config())
    data = planted_material(draft, (0, 3, 8), LAYERS, 4, 12)
    plain, kept = Losses(draft, data), CachedLosses(draft, data)
    computed, compute = [], kept._sums

    def noted(layouts, *rest):
        computed.extend(map(tuple, layouts.tolist()))
        return compute(layouts, *rest)

    monkeypatch.setattr(kept, "_sums", noted)
    wide, narrow = plain.whole, Extent(2, 7)
    asked = [
        ([(0, 3, 8), (1, 1, 1)], wide, 4.0),
        ([(1, 1, 1), (8, 3, 0), (0, 3, 8), (8, 3, 0)], wide, 4.0),
        ([(8, 3, 0)], narrow, 4.0),
        ([(8, 3, 0)], narrow, 1.0),
        ([(0, 3, 8)], wide, 4.0),
    ]
    for layouts, extent, temperature in asked:
        want = plain.means(layouts, extent, temperature)
        torch.testing.assert_close(kept.means(layouts, extent, temperature), want, rtol=1e-6, atol=0)
    assert computed == [(0, 3, 8), (1, 1, 1), (8, 3, 0), (8, 3, 0), (8, 3, 0)]


@pytest.mark.parametrize("layout", [(0, 3, 8), (3, 3, 7), (9, 0, 5)])
def test_both_searches_name_the_planted_layout(layout):
    draft = planted_draft(small_config(), seed=3)
    data = planted_material(draft, layout, LAYERS, 24, 24, seed=5)
    by_all = search(draft, data, exhaustive=True)
    by_slots = search(draft, data)
    assert by_all.layout == by_slots.layout == layout
    assert by_all.compared == 1000 and by_slots.compared < 150
    best = by_all.ranking[0]
    assert (best.difference, best.low, best.high) == (0, 0, 0)
    assert [row.cross_entropy for row in by_all.ranking] == sorted(row.cross_entropy for row in by_all.ranking)
    for row in by_all.ranking[1:4]:
        assert row.difference == pytest.approx(row.cross_entropy - best.cross_entropy)
        assert row.low <= row.difference <= row.high
        assert row.cross_entropy == pytest.approx(slow_mean(draft, data, row.layout), rel=1e-5)
        assert row.plain == pytest.approx(slow_mean(draft, data, row.layout, 1.0), rel=1e-5)
    shared = {row.layout: row.cross_entropy for row in by_slots.ranking}
    both = [row for row in by_all.ranking if row.layout in shared]
    assert len(both) > 3
    assert all(shared[row.layout] == pytest.approx(row.cross_entropy, rel=1e-6) for row in both)


def test_the_first_layout_is_the_first_of_a_full_evaluation():
    """No halving: every layout on every row, by the plain sums."""
    draft = planted_draft(small_config(num_slots=2), seed=3)
    data = planted_material(draft, (2, 7), LAYERS, 16, 16, seed=6)
    losses = Losses(draft, data)
    every = all_layouts(LAYERS, 2)
    assert [tuple(row) for row in every.tolist()] == list(itertools.product(range(LAYERS + 1), repeat=2))
    best = tuple(every[losses.means(every, losses.whole).argmin()].tolist())
    assert search(draft, data, exhaustive=True).ranking[0].layout == best == (2, 7)


def test_slots_of_fc_moved_together_with_the_layout_move_the_answer():
    draft = planted_draft(small_config(norm_before_fc=True), seed=3)
    data = planted_material(draft, (1, 8, 4), LAYERS, 24, 24, seed=5)
    moved = planted_draft(small_config(norm_before_fc=True), seed=3)
    order = (2, 0, 1)  # slot i of the moved draft is slot order[i] of the other
    with torch.no_grad():
        for weight, axis in ((moved.fc.weight, 1), (moved.input_norm.weight, 0)):
            weight.copy_(torch.cat([weight.chunk(3, axis)[i] for i in order], axis))
    one, other = (search(d, data, exhaustive=True) for d in (draft, moved))
    assert one.layout == (1, 8, 4) and other.layout == (4, 1, 8)
    for a, b in zip(one.ranking, other.ranking, strict=True):
        assert b.cross_entropy == pytest.approx(a.cross_entropy, rel=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_a_draft_with_shuffled_columns_fits_nothing(seed):
    draft = planted_draft(small_config(), seed=3)
    data = planted_material(draft, (0, 3, 8), LAYERS, 24, 24, seed=5)
    with torch.no_grad():
        order = torch.randperm(draft.fc.weight.shape[1], generator=torch.Generator().manual_seed(seed))
        draft.fc.weight.copy_(draft.fc.weight[:, order])
    result = search(draft, data, exhaustive=True)
    assert not result.fits and result.layout is None
    assert result.reason.startswith("no layout fits")
    assert any(control.low <= 0 for control in result.controls)


def test_a_draft_that_was_never_trained_fits_nothing():
    draft = planted_draft(small_config(), seed=3)
    data = planted_material(draft, (0, 3, 8), LAYERS, 24, 24, seed=5)
    untrained = Eagle3Draft.fresh(draft.config, draft.embedding, 9, draft.target_ids).requires_grad_(False)
    assert not search(untrained, data).fits


def test_the_interval_is_that_of_documents_drawn_again():
    """Against the closed form for many documents: mean of differences, plus or minus 1.96 standard errors."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(400, generator=generator).double().numpy()
    apart = (torch.randn(400, generator=generator) * 3 + 0.5).double().numpy()
    mean, low, high = paired_differences((base + apart)[None], base, torch.ones(400).long().numpy(), 0)[0]
    error = 1.96 * apart.std() / 20
    assert mean == pytest.approx(apart.mean())
    assert (low, high) == (pytest.approx(mean - error, abs=0.05), pytest.approx(mean + error, abs=0.05))


def test_both_halves_hold_both_kinds_of_documents_that_alternate():
    known, held_out = halves(64)
    assert sorted([*known, *held_out]) == list(range(64))
    assert len(known) == sum(number % 2 for number in known) * 2 == sum(number % 2 for number in held_out) * 2


def test_too_many_layouts_are_refused():
    draft = planted_draft(small_config(num_slots=5))
    data = planted_material(draft, (0, 1, 2, 3, 4), 61, 4, 8)
    with pytest.raises(WiringError) as error:
        search(draft, data, exhaustive=True)
    assert error.value.code == "exhaustive-too-expensive"

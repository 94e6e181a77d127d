"""Slot matching on a random residual stream: planted layouts are recovered, ambiguous slots are left undecided."""

import pytest
import torch
from pydantic import TypeAdapter

from wiring.capture.matching import Norm, SlotMatch, TextRows, compare_slots, diff_layouts, match_slots, matched_layout
from wiring.errors import WiringError


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
    assert (match.boundary, match.verdict, match.nearest) == (None, "undecided", 5)


def test_neighbors_that_are_alike_are_both_named():
    reference = stream()
    reference[8] = reference[7] * (1 + 1e-3)
    states = (reference[7] * (1 + 6e-4))[:, None]
    (match,) = match_slots(states, reference)
    assert (match.verdict, match.boundary, match.alike) == ("undecided", None, (7, 8))
    reference[8] = reference[7]
    (match,) = match_slots(served(reference, (7,)), reference)
    assert (match.verdict, match.alike) == ("undecided", (7, 8))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x: x * 0, "zeros"),
        (lambda x: x * 50, "boundary 6 but 50 times"),
        (lambda x: x.roll(1, 0), "nearest"),
        (lambda x: torch.cat([x[:30], x[:10]]), "boundary 6, but 10 of 40 do not (first: row 30)"),
        (lambda x: torch.where(torch.arange(40)[:, None, None] == 3, torch.nan, x), "NaN"),
        (lambda x: x * 0 + torch.inf, "infinity"),
        (lambda x: torch.randn(x.shape, generator=torch.Generator().manual_seed(5)), "nearest"),
    ],
)
def test_a_broken_slot_is_undecided_and_others_are_not(change, reason):
    reference = stream()
    states = torch.cat([served(reference, (3,)), change(served(reference, (6,)))], 1)
    healthy, broken = match_slots(states, reference)
    assert (healthy.boundary, broken.boundary, broken.verdict) == (3, None, "undecided")
    assert reason in broken.reason


def test_states_that_do_not_depend_on_the_position_prove_nothing():
    reference = stream()[:, :1].expand(-1, 40, -1)
    (match,) = match_slots(served(reference, (6,)), reference)
    assert (match.verdict, match.nearest, match.null_error) == ("undecided", 6, 0)


def test_the_null_is_seeded():
    reference = stream()
    states = served(reference, (3, 9))
    assert match_slots(states, reference, seed=4) == match_slots(states, reference, seed=4)
    assert match_slots(states, reference, seed=4)[0].null_error != match_slots(states, reference, seed=5)[0].null_error


@pytest.mark.parametrize(
    ("states", "rows", "code"),
    [
        (torch.zeros(40, 3, 31), None, "states-do-not-match"),
        (torch.zeros(40, 3, 32), TextRows(torch.arange(39)), "states-do-not-match"),
        (torch.zeros(1, 3, 32), TextRows(torch.zeros(1, dtype=torch.int64)), "too-few-states-to-match"),
        (torch.zeros(40, 3, 32), TextRows(torch.arange(40) + 100), "too-few-states-to-match"),
    ],
)
def test_states_that_cannot_be_matched(states, rows, code):
    with pytest.raises(WiringError) as error:
        compare_slots(states, stream(), served_rows=rows)
    assert error.value.code == code


def moved(states, shift):
    """Row p holds the state of row p + shift; the rows for which there is none are left out."""
    rows = torch.arange(max(0, -shift), len(states) - max(0, shift))
    return states[rows + shift], rows


@pytest.mark.parametrize("shift", [-2, -1, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_shifts_are_found_where_rows_exist_on_both_sides(shift, dtype):
    reference = stream()
    states, rows = moved(served(reference, (0, 3, 12)), shift)
    comparison = compare_slots(
        states.to(dtype), reference, served_rows=TextRows(rows), reference_rows=TextRows.whole([40])
    )
    assert comparison.layout == (0, 3, 12)
    assert {m.shift for m in comparison.matches} == {shift}
    assert {m.rows for m in comparison.matches} == {40 - abs(shift)}
    assert comparison.matches[0].seen_as == f"shift {shift:+d}"


def test_a_shift_does_not_reach_into_the_next_text():
    reference = stream(rows=60)
    rows = TextRows.whole([20, 25, 15])
    order = torch.randperm(60, generator=torch.Generator().manual_seed(2))  # rows may come in any order
    states = served(reference, (3, 12))[order]
    comparison = compare_slots(
        states, reference, served_rows=TextRows(rows.positions[order], rows.texts[order]), reference_rows=rows
    )
    assert comparison.layout == (3, 12)
    # One row of each text has no neighbor: the text decides, not the order of the rows.
    moved_rows = [i for i in range(60) if rows.positions[i] > 0]
    index = torch.tensor(moved_rows)
    comparison = compare_slots(
        served(reference, (3, 12))[index - 1],
        reference,
        served_rows=TextRows(rows.positions[index], rows.texts[index]),
        reference_rows=rows,
    )
    assert comparison.layout == (3, 12) and {m.shift for m in comparison.matches} == {-1}
    assert {m.rows for m in comparison.matches} == {57}


def repeating(tokens, layers=6, width=32):
    """A reference [L+1, N, H] whose boundary 0 depends on the token alone, as an embedding does."""
    g = torch.Generator().manual_seed(3)
    table = torch.randn(max(tokens) + 1, width, generator=g)
    reference = stream(layers, len(tokens), width)
    reference[0] = table[tokens]
    reference[1:] += reference[0]
    return reference


def test_repeated_tokens_do_not_make_a_shift():
    """Nine rows in ten are equal to their neighbor at boundary 0, so a shift and none agree on most rows."""
    tokens = [i // 10 for i in range(200)]
    reference = repeating(tokens)
    (match,) = compare_slots(served(reference, (0,)), reference, shifts=(-1, 0, 1)).matches
    assert (match.verdict, match.boundary, match.shift) == ("equals", 0, 0)
    states, rows = moved(served(reference, (0,)), 1)
    (match,) = compare_slots(
        states, reference, served_rows=TextRows(rows), reference_rows=TextRows.whole([200]), shifts=(-1, 0, 1)
    ).matches
    assert (match.verdict, match.boundary, match.shift) == ("equals", 0, 1)  # 19 rows differ


def test_one_token_in_most_rows_does_not_hide_the_embedding():
    """Wrong positions of the same token are not wrong: they say nothing about the null."""
    g = torch.Generator().manual_seed(1)
    tokens = [
        int(t) if keep else 0 for t, keep in zip(torch.arange(200), torch.rand(200, generator=g) < 0.2, strict=True)
    ]
    reference = repeating(tokens)
    (match,) = compare_slots(served(reference, (0,)), reference).matches
    assert (match.verdict, match.boundary, match.shift) == ("equals", 0, 0)
    assert match.null_error > 0.5


def test_under_much_noise_the_nearest_is_not_the_longest():
    reference = stream(rows=100, width=256)
    g = torch.Generator().manual_seed(2)
    size = reference[5].norm(dim=-1, keepdim=True) / 16
    (match,) = compare_slots(
        (reference[5] + 1.2 * size * torch.randn(100, 256, generator=g))[:, None], reference
    ).matches
    assert (match.verdict, match.boundary, match.nearest, match.transform) == ("undecided", None, 5, "raw")


@pytest.mark.parametrize(
    ("noise", "verdicts"),
    [
        ((0.01, 0.15, 0.3), ("equals", "drift", "drift")),
        ((0.15, 0.15, 0.15), ("undecided",) * 3),  # as much at each depth
        ((0.3, 0.15, 0.01), ("undecided", "undecided", "equals")),  # less with depth
        ((0.01, 0.3, 0.1), ("equals", "undecided", "undecided")),  # up and down
    ],
)
def test_drift_is_what_grows_with_depth(noise, verdicts):
    reference = stream(rows=100, width=128)
    g = torch.Generator().manual_seed(2)
    states = served(reference, (3, 9, 18))
    size = states.norm(dim=-1, keepdim=True) / 128**0.5
    states = states + torch.tensor(noise)[:, None] * size * torch.randn(states.shape, generator=g)
    comparison = compare_slots(states, reference)
    assert tuple(m.verdict for m in comparison.matches) == verdicts
    assert [m.nearest for m in comparison.matches] == [3, 9, 18]
    assert [m.errors[m.nearest] for m in comparison.matches] == pytest.approx(noise, rel=0.1)
    (alone,) = compare_slots(states[:, 1:2], reference).matches
    assert alone.verdict == "undecided"  # one depth shows no growth


def test_a_shift_that_few_rows_show_is_not_claimed():
    tokens = [0] * 100 + [1] * 100 + [2] * 100  # two rows differ under a shift
    reference = repeating(tokens)
    states, rows = moved(served(reference, (0,)), 1)
    (match,) = compare_slots(
        states,
        reference,
        served_rows=TextRows(rows),
        reference_rows=TextRows.whole([300]),
        shifts=(0, 1),
        corrupted=0.0,
    ).matches
    assert (match.verdict, match.boundary) == ("undecided", None) and "2 of 299" in match.reason
    assert diff_layouts((0,), (match,)).names == ("undecided",)


def plain_norm(x, weight, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


@pytest.mark.parametrize(
    ("transform", "change"),
    [
        ("normed", lambda x, w: plain_norm(x, w, 1e-5)),
        ("rms-scaled", lambda x, w: plain_norm(x, 1.0, 1e-5)),
        ("embedding-scaled", lambda x, w: x * 32**0.5),
    ],
)
def test_transforms_are_recognized(transform, change):
    reference = stream()
    weight = 1 + 0.5 * torch.rand(32, generator=torch.Generator().manual_seed(8))
    states = change(served(reference, (0, 3, 12)), weight).bfloat16()
    comparison = compare_slots(states, reference, norm=Norm(weight, 1e-5))
    assert comparison.layout == (0, 3, 12)
    assert {m.transform for m in comparison.matches} == {transform}
    difference = diff_layouts((0, 3, 12), comparison.matches)
    assert (difference.names, difference.kinds) == ((transform,), (5,))


def test_of_two_equal_norms_the_targets_own_is_named():
    reference = stream()
    states = plain_norm(served(reference, (3,)), 1.0, 1e-6)
    (match,) = compare_slots(states, reference, norm=Norm(torch.ones(32))).matches
    assert (match.verdict, match.boundary, match.transform) == ("equals", 3, "normed")


def test_a_part_of_a_layer_s_sum_is_between_two_boundaries():
    reference = stream(rows=80)
    g = torch.Generator().manual_seed(6)
    step = reference[9] - reference[8]
    half = (torch.rand(step.shape, generator=g) < 0.5).float()  # one rank's part of the sum
    states = (reference[9] - half * step)[:, None]
    (match,) = compare_slots(states, reference).matches
    assert (match.verdict, match.boundary, match.between) == ("between", None, (8, 9))
    assert match.share == pytest.approx(0.5, abs=0.05)  # in expectation half of the step is there
    difference = diff_layouts((9,), (match,))
    assert (difference.names, difference.kinds, difference.served) == (("partial sum",), (4,), (9,))
    scaled = (0.9 * reference[9])[:, None]  # a scale touches all steps alike
    assert compare_slots(scaled, reference).matches[0].verdict == "undecided"


def test_the_null_distribution_is_that_of_wrong_positions():
    reference = stream(rows=400)
    (match,) = compare_slots(served(reference, (9,)), reference).matches
    distances = torch.cdist(reference[9], reference[9]) / reference[9].norm(dim=-1)  # all pairs
    wrong = distances[~torch.eye(400, dtype=torch.bool)]
    assert match.null_error == pytest.approx(float(wrong.quantile(0.5)), rel=0.03)
    assert match.null_low == pytest.approx(float(wrong.quantile(0.05)), rel=0.03)


def test_blocks_of_rows_give_the_same(monkeypatch):
    from wiring.capture.matching import candidate_scan as scan

    reference = stream()
    whole = compare_slots(served(reference, (3, 9)), reference)
    monkeypatch.setattr(scan, "_BLOCK_BYTES", 8 * 21 * 32 * 7)  # seven rows at a time
    blocks = compare_slots(served(reference, (3, 9)), reference)
    assert blocks.layout == whole.layout == (3, 9)
    for one, other in zip(whole.matches, blocks.matches, strict=True):
        assert one.errors == pytest.approx(other.errors, rel=1e-9, abs=1e-7)
        assert (one.cosine, one.norm_ratio) == pytest.approx((other.cosine, other.norm_ratio), rel=1e-9)


def test_a_few_corrupted_rows_are_accepted_and_many_are_not():
    reference = stream(rows=200)
    states = served(reference, (6,))
    states[:3] = states[10:13]
    (match,) = compare_slots(states, reference).matches
    assert match.boundary == 6 and "3 of 200" in match.reason
    states[:30] = states[50:80]
    (match,) = compare_slots(states, reference).matches
    assert match.boundary is None and "30 of 200" in match.reason


@pytest.mark.parametrize(
    ("trained", "held", "names", "kinds"),
    [
        ((0, 3, 12), (3, 12), ("slot count",), (3,)),
        ((0, 3, 12), (0, 3, 12, 19), ("slot count",), (3,)),
        ((3, 12), (12, 3), ("swapped",), (3,)),
        ((3, 7, 12, 19), (7, 12, 19, 3), ("rotated",), (3,)),
        ((3, 7, 12, 19), (12, 19, 3, 7), ("rotated",), (3,)),
        ((3, 7, 12, 19), (7, 3, 19, 12), ("permuted",), (3,)),
        ((3, 7, 12), (1, 3, 7), ("moved by one slot",), (1,)),
        ((3, 12, 20), (4, 13, 20), ("off by one up",), (2,)),  # above the last boundary there is none
        ((3, 12), (3, 14), ("other layers",), (1,)),
        ((3, 3, 12), (3, 3, 12), ("same",), ()),
        ((3, 12, 19), (2, 10, 17), ("default layers",), (1,)),
        ((3, 11, 18), (2, 10, 17), ("default layers", "off by one down"), (2,)),
    ],
)
def test_layouts_are_named_as_a_whole(trained, held, names, kinds):
    reference = stream()
    difference = diff_layouts(trained, match_slots(served(reference, held), reference))
    assert (difference.served, difference.names, difference.kinds) == (held, names, kinds)
    assert (str(held) in difference.text) or names == ("same",)


def test_faults_of_single_slots_are_named_if_one_is_unknown():
    reference = stream()
    states = served(reference, (3, 12, 0, 5))
    states[:, 1] = torch.randn(40, 32, generator=torch.Generator().manual_seed(1))
    states[:, 2] *= 32**0.5
    difference = diff_layouts((3, 7, 0, 4), compare_slots(states, reference).matches)
    assert difference.served == (3, None, 0, 5)
    assert (difference.names, difference.kinds) == (("undecided", "embedding-scaled", "off by one up"), (5, 2))


def test_an_artefact_stores_the_match_without_its_statistics():
    (match,) = compare_slots(served(stream(), (9,)), stream()).matches
    row = match.row()
    assert (row["boundary"], row["shift"], row["transform"], row["runner_up"]) == (9, 0, "raw", match.runner_up)
    assert "errors" not in row and match.summary().items() < row.items()
    assert match.errors.index(min(match.errors)) == 9 and len(match.errors) == 21
    stored = TypeAdapter(SlotMatch).dump_python(match)
    assert stored == match.summary() and SlotMatch(**stored).boundary == 9

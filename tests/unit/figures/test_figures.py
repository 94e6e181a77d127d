"""Figures carry the numbers that they were given: trace data, marks, axis titles with units, and the counting rule."""

from types import SimpleNamespace

import numpy as np
import pytest

from wiring.bench.arm_results import ArmResult
from wiring.bench.measurement import RATE_RULE
from wiring.figures import claim_figures as figures


def arm(name, rate, quartiles, speedup):
    return ArmResult(
        arm=name,
        requests=2,
        tok_per_s=rate,
        tok_per_s_quartiles=quartiles,
        speedup=speedup,
        speedup_quartiles=(speedup, speedup),
        prefill_s=0.1,
    )


def caption(fig) -> str:
    return fig.layout.annotations[-1].text.replace("<br>", " ")


def test_throughput_shows_median_quartiles_and_the_prediction():
    fig = figures.throughput(
        [arm("plain", 16.0, (15.0, 18.0), 1.0), arm("cured", 36.0, (30.0, 40.0), 2.25)], predicted=34.0
    )
    plain, cured, predicted = fig.data
    assert (plain.y[0], cured.y[0], predicted.y[0]) == (16.0, 36.0, 34.0)
    assert (plain.error_y.array[0], plain.error_y.arrayminus[0]) == (2.0, 1.0)
    assert tuple(fig.layout.xaxis.ticktext) == ("plain<br>1.00x", "cured<br>2.25x") and predicted.x[0] == "cured"
    assert "tokens per second" in fig.layout.yaxis.title.text and RATE_RULE in caption(fig)


def test_accuracy_intervals_are_drawn_from_low_to_high(accuracy_report):
    fig = figures.accuracy_by_depth({"trained": accuracy_report((0,), 0.5, depths=3)})
    np.testing.assert_allclose(fig.data[0].y, [0.5] * 3)
    np.testing.assert_allclose(fig.data[0].error_y.array, [0.2] * 3)
    np.testing.assert_allclose(fig.data[0].error_y.arrayminus, [0.1] * 3)


def test_accuracy_by_layout_marks_trained_and_served_and_names_the_counting_rule(accuracy_report):
    names = ("trained (0,)", "served (3,)", "zeroed", "shifted")
    fig = figures.accuracy_by_depth({name: accuracy_report((0,), 0.5) for name in names})
    colors = [trace.marker.color for trace in fig.data]
    assert colors[:2] == [figures.GREEN, figures.RED] and len(set(colors)) == 4
    assert [trace.line.dash for trace in fig.data] == ["solid", "solid", "dot", "dot"]
    assert len({trace.marker.symbol for trace in fig.data}) == 4
    assert "specforge: loss mask tested at" in caption(fig) and "share of rows" in fig.layout.yaxis.title.text


def matches(errors, boundaries, layout, seen_as=""):
    return [
        SimpleNamespace(slot=i, boundary=b, boundaries=boundaries, errors=e, seen_as=seen_as)
        for i, (b, e) in enumerate(zip(layout, errors, strict=True))
    ]


def test_the_similarity_map_has_a_row_for_each_slot_and_marks_served_and_trained():
    errors = [(1.0, 0.01, 0.1), (0.5, 0.0, float("inf"))]
    fig = figures.similarity_map(
        {"prefill": matches(errors, (0, 3, 31), (3, None)), "verify": matches(errors, (0, 3, 31), (3, 3), "shift +1")},
        trained=(0, 3),
    )
    heat, served, halo, trained = fig.data
    names = ("prefill, slot 0", "prefill, slot 1", "verify, slot 0 (shift +1)", "verify, slot 1 (shift +1)")
    assert tuple(heat.y) == names and tuple(heat.x) == (0, 3, 31)
    assert [tuple(row) for row in heat.z] == [(0.0, -2.0, -1.0), (-0.3, -4.0, None)] * 2
    assert tuple(zip(served.x, served.y, strict=True)) == ((3, names[0]), (3, names[2]), (3, names[3]))
    assert tuple(trained.x) == tuple(halo.x) == (0, 3, 0, 3) and tuple(trained.y) == tuple(halo.y) == names
    assert (served.name, trained.name, halo.showlegend) == ("served", "trained", False)


def test_a_ranking_shows_each_layout_with_its_interval_and_the_trained_one_as_a_green_diamond():
    rows = [
        SimpleNamespace(layout=(0, 3), difference=0.0, low=0.0, high=0.0),
        SimpleNamespace(layout=(0, 4), difference=0.5, low=0.2, high=0.9),
    ]
    (points,) = figures.ranking(rows, trained=(0, 3)).data
    assert tuple(points.y) == ("0, 3", "0, 4") and tuple(points.x) == (0.0, 0.5)
    assert points.marker.color == (figures.GREEN, figures.BLUE) and points.marker.symbol == ("diamond", "circle")
    np.testing.assert_allclose([points.error_x.array, points.error_x.arrayminus], [[0, 0.4], [0, 0.3]])


def test_layout_cells_are_green_where_trained_and_served_agree():
    fig = figures.layouts({"served": (3, 31, 59), "cured": (0, 3, 31), "undecided": (0, None, 31)}, trained=(0, 3, 31))
    np.testing.assert_array_equal(fig.data[0].z, [[0, 0, 0], [1, 1, 1], [1, 0, 1]])
    assert [tuple(row) for row in fig.data[0].text] == [("3", "31", "59"), ("0", "3", "31"), ("0", "?", "31")]


def test_acceptance_starts_at_position_one_and_a_prediction_is_dashed():
    fig = figures.acceptance({"cured": (0.8, 0.5), "replayed": (0.75, 0.5)})
    assert tuple(fig.data[0].x) == (1, 2) and tuple(fig.data[0].y) == (0.8, 0.5)
    assert [trace.line.dash for trace in fig.data] == ["solid", "dash"]
    assert fig.data[1].marker.symbol.endswith("-open") and "predicted" in caption(fig)


@pytest.fixture
def every(accuracy_report):
    """One figure of each kind, the similarity map with the 9 x 62 cells of the tiny pair."""
    errors = [tuple(np.linspace(0.1, 1, 62))] * 3
    slots = matches(errors, tuple(range(62)), (0, 3, 31))
    ranked = [SimpleNamespace(layout=(0, 3), difference=0.0, low=0.0, high=0.0)]
    return {
        "throughput": figures.throughput([arm("plain", 16.0, (15.0, 18.0), 1.0)], 15.0),
        "speedups": figures.speedups({"cured": [2.0, 2.5]}),
        "accuracy": figures.accuracy_by_depth({"trained": accuracy_report((0,), 0.5)}),
        "map": figures.similarity_map(dict.fromkeys(("prefill", "verify", "draft_extend"), slots), (0, 3, 31)),
        "ranking": figures.ranking(ranked, (0, 3)),
        "layouts": figures.layouts({"served": (0, 3)}, (0, 3)),
        "acceptance": figures.acceptance({"cured": (0.8, 0.5)}),
    }


def test_figures_stay_small_enough_for_a_notebook(every):
    assert {name: len(fig.to_json()) for name, fig in every.items() if len(fig.to_json()) > 5_000}.keys() == {"map"}
    assert len(every["map"].to_json()) < 20_000


def test_every_figure_has_the_template_a_title_and_a_caption_and_no_ink_of_one_page_only(every):
    for name, fig in every.items():
        assert fig.layout.template.layout.paper_bgcolor == "rgba(0,0,0,0)", name
        assert fig.layout.title.text and len(caption(fig)) > 40, name
        if name != "layouts":  # its cells are filled
            assert '"black"' not in fig.to_json(), name

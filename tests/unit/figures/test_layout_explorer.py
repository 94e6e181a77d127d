"""The fast accuracies of the layout explorer equal those of the evaluation, and its controls draw the chosen layout."""

import html
import time
from itertools import islice
from statistics import median

import ipywidgets
import pytest

from wiring.accuracy.evaluation import evaluate
from wiring.errors import WiringError
from wiring.figures import explorer_panel
from wiring.figures.layout_explorer import RULE, accuracy_by_layout, open_explorer, rows_counted
from wiring.figures.panel_controls import Controls, put
from wiring.workbook.case import open_case
from wiring.workbook.evaluate import load_reference, open_draft

DOCUMENTS, DEPTHS = 8, 5
TRAINED, SERVED = (0, 3, 31), (3, 31, 59)
MARKS = {"trained": TRAINED, "served": SERVED}


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return open_case(profile="cpu-tiny", run=str(tmp_path_factory.mktemp("run")), measure="recorded")


@pytest.fixture(scope="module")
def opened(case):
    return open_draft(case)


@pytest.fixture(scope="module")
def explorer(opened):
    return open_explorer(opened, DEPTHS, documents=DOCUMENTS, window=4096)


@pytest.mark.parametrize("layout", [TRAINED, SERVED, (59, 0, 3)])
def test_accuracies_are_those_of_the_evaluation(opened, explorer, layout):
    samples = islice(iter(opened.states), DOCUMENTS)
    (report,) = evaluate(opened.draft, samples, layout, DEPTHS, opened.head, controls=("none",)).values()
    assert explorer.rows == report.depths[0].total
    # A sum of products rounds differently from one product: a row or two may change.
    assert explorer.accuracy(layout) == pytest.approx([d.accuracy for d in report.depths], abs=2.5 / explorer.rows)


@pytest.mark.long  # the target in transformers takes some seconds
def test_with_the_target_every_boundary_is_there_and_the_saved_ones_give_the_same(case, opened):
    saved = open_explorer(opened, 2, documents=2, window=48)
    every = open_explorer(opened, 2, documents=2, window=48, reference=load_reference(case))
    assert saved.boundaries == (0, 3, 31, 59) and every.boundaries == tuple(range(62))
    assert every.rows == saved.rows < 2 * 48
    for layout in (TRAINED, SERVED):  # saved in bfloat16, computed in float32
        assert every.accuracy(layout) == pytest.approx(saved.accuracy(layout), abs=2.5 / saved.rows)
    assert "boundaries 0, 3, 31, 59" in rows_counted(saved) and "every boundary" in rows_counted(every)


@pytest.mark.parametrize("layout", [(0, 3), (0, 3, 30)])
def test_a_layout_without_states_is_an_error(explorer, layout):
    with pytest.raises(WiringError) as error:
        explorer.accuracy(layout)
    assert (error.value.code, error.value.where) == ("layout-without-states", str(layout))
    assert error.value.expected == "3 of the boundaries (0, 3, 31, 59)"


def test_a_move_is_fast(opened, record_property):
    explorer = open_explorer(opened, DEPTHS)  # as in notebook 03
    spent, waited = [], []
    for layout in [(a, b, 0) for a in (0, 3, 31, 59) for b in (3, 59)]:  # each of them new
        begin, waiting = time.process_time(), time.perf_counter()
        accuracy_by_layout(explorer, MARKS, layout)
        spent.append(1000 * (time.process_time() - begin))
        waited.append(1000 * (time.perf_counter() - waiting))
    times = f"{median(spent):.0f} ms of this process, {median(waited):.0f} ms on the clock"
    record_property("a move", times)
    print(f"layout explorer, {explorer.rows} rows, {DEPTHS} depths: {times} a move")
    assert median(spent) < 1000  # the target is 200 ms; this machine may be busy


def shown(box):
    """The chosen trace of the figure that the widget shows."""
    (output,) = [child for child in box.children if isinstance(child, ipywidgets.Output)]
    (figure,) = [one["data"]["application/vnd.plotly.v1+json"] for one in output.outputs]
    return {trace["name"].split()[0]: trace for trace in figure["data"]}


def test_moving_a_slider_draws_the_chosen_layout_beside_the_marked_ones(explorer):
    box = explorer_panel(explorer, MARKS)
    sliders = [child for child in box.children if isinstance(child, ipywidgets.SelectionSlider)]
    assert [slider.value for slider in sliders] == list(TRAINED) and set(shown(box)) == {"trained", "served", "chosen"}
    sliders[0].value = 59
    assert shown(box)["chosen"]["name"] == "chosen (59, 3, 31)"
    assert shown(box)["chosen"]["y"] == pytest.approx(explorer.accuracy((59, 3, 31)), abs=1e-4)
    assert shown(box)["trained"]["y"] == pytest.approx(explorer.accuracy(TRAINED), abs=1e-4)


def test_a_button_goes_to_its_layout_in_one_move(explorer):
    box = explorer_panel(explorer, MARKS)
    buttons = {button.description: button for button in box.children[0].children}
    buttons[f"served {SERVED}"].click()
    assert [c.value for c in box.children if isinstance(c, ipywidgets.SelectionSlider)] == list(SERVED)
    assert shown(box)["chosen"]["y"] == shown(box)["served"]["y"]
    assert "after 59 layers" in box.children[-3].value


def test_the_counting_rule_is_shown_once(explorer):
    box = explorer_panel(explorer, MARKS)
    (output,) = [child for child in box.children if isinstance(child, ipywidgets.Output)]
    (figure,) = [one["data"]["application/vnd.plotly.v1+json"] for one in output.outputs]
    captions = [" ".join(note["text"].split("<br>")) for note in figure["layout"]["annotations"]]
    words = [child.value for child in box.children if isinstance(child, ipywidgets.HTML)]
    assert sum(RULE.describe in text for text in [*captions, *map(html.unescape, words)]) == 1


def test_controls_call_once_for_one_move_and_once_for_several():
    calls = []
    sliders = {name: ipywidgets.IntSlider(value=0, max=9) for name in "ab"}
    controls = Controls(lambda **values: calls.append(values), **sliders)
    sliders["a"].value = 3
    controls.set(a=1, b=2)
    assert calls == [{"a": 3, "b": 0}, {"a": 1, "b": 2}]


def test_what_is_put_replaces_what_was_there():
    output = ipywidgets.Output()
    put(output, "<b>one</b>")
    put(output, "<b>two</b>")
    assert [one["data"]["text/html"] for one in output.outputs] == ["<b>two</b>"]

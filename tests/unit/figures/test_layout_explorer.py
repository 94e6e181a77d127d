"""The fast accuracies of the layout explorer equal those of the evaluation, and its controls draw the chosen layout."""

import html
import time
from itertools import islice
from statistics import median

import ipywidgets
import pytest

from wiring.accuracy.evaluation import evaluate
from wiring.figures import explorer_panel
from wiring.figures.layout_explorer import RULE, LayoutExplorer, accuracy_by_layout
from wiring.figures.panel_controls import Controls, put
from wiring.workbook.case import open_case
from wiring.workbook.evaluate import load_reference, open_draft

DOCUMENTS, DEPTHS = 4, 5
TRAINED, SERVED = (0, 3, 31), (3, 31, 59)
MARKS = {"trained": TRAINED, "served": SERVED}


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return open_case(profile="cpu-tiny", run=str(tmp_path_factory.mktemp("run")), measure="recorded")


@pytest.fixture(scope="module")
def opened(case):
    return open_draft(case)


@pytest.fixture(scope="module")
def reference(case):
    return load_reference(case)


@pytest.fixture(scope="module")
def explorer(opened, reference):
    return LayoutExplorer(opened, reference, DEPTHS, documents=DOCUMENTS, window=4096)


@pytest.mark.parametrize("layout", [TRAINED, SERVED, (59, 0, 3)])
def test_accuracies_are_those_of_the_evaluation(opened, explorer, layout):
    samples = islice(iter(opened.states), DOCUMENTS)
    (report,) = evaluate(opened.draft, samples, layout, DEPTHS, opened.head, controls=("none",)).values()
    assert explorer.rows == report.depths[0].total
    # The saved states are bfloat16, and a sum of products rounds differently from one product: a row or two may change.
    assert explorer.accuracy(layout) == pytest.approx([d.accuracy for d in report.depths], abs=2.5 / explorer.rows)


def test_a_move_is_fast(opened, reference, record_property):
    explorer = LayoutExplorer(opened, reference, DEPTHS)  # as in notebook 03
    spent, waited = [], []
    for layout in [(a, b, 0) for a in (0, 3, 31, 59) for b in (3, 59)]:  # each is new
        begin, waiting = time.process_time(), time.perf_counter()
        accuracy_by_layout(explorer, MARKS, layout)
        spent.append(1000 * (time.process_time() - begin))
        waited.append(1000 * (time.perf_counter() - waiting))
    times = f"{median(spent):.0f} ms of this process, {median(waited):.0f} ms on the clock"
    record_property("a move", times)
    print(f"layout explorer, {explorer.rows} rows, {DEPTHS} depths: {times} a move")
    assert median(spent) < 1000  # the target is 200 ms; this machine may be busy


def drawn(box):
    """Return the traces of the panel's figure by the first word of their names, and its captions."""
    (output,) = [child for child in box.children if isinstance(child, ipywidgets.Output)]
    (figure,) = [one["data"]["application/vnd.plotly.v1+json"] for one in output.outputs]
    captions = [" ".join(caption["text"].split("<br>")) for caption in figure["layout"]["annotations"]]
    return {trace["name"].split()[0]: trace for trace in figure["data"]}, captions


def test_sliders_and_buttons_draw_the_chosen_layout_with_the_marked_ones(explorer):
    box = explorer_panel(explorer, MARKS)
    sliders = [child for child in box.children if isinstance(child, ipywidgets.SelectionSlider)]
    traces, captions = drawn(box)
    assert [slider.value for slider in sliders] == list(TRAINED) and set(traces) == {"trained", "served", "chosen"}
    texts = [html.unescape(child.value) for child in box.children if isinstance(child, ipywidgets.HTML)]
    assert sum(RULE.describe in text for text in captions + texts) == 1
    sliders[0].value = 59
    traces, _ = drawn(box)
    assert traces["chosen"]["name"] == "chosen (59, 3, 31)"
    assert traces["chosen"]["y"] == pytest.approx(explorer.accuracy((59, 3, 31)), abs=1e-4)
    assert traces["trained"]["y"] == pytest.approx(explorer.accuracy(TRAINED), abs=1e-4)
    buttons = {button.description: button for button in box.children[0].children}
    buttons[f"served {SERVED}"].click()
    assert [slider.value for slider in sliders] == list(SERVED)
    traces, _ = drawn(box)
    assert traces["chosen"]["y"] == traces["served"]["y"] and "after 59 layers" in box.children[-3].value


def test_controls_call_once_for_one_change_and_once_for_several():
    calls = []
    sliders = {name: ipywidgets.IntSlider(value=0, max=9) for name in "ab"}
    controls = Controls(lambda **values: calls.append(values), **sliders)
    sliders["a"].value = 3
    controls.set(a=1, b=2)
    assert calls == [{"a": 3, "b": 0}, {"a": 1, "b": 2}]


def test_put_replaces_the_previous_output():
    output = ipywidgets.Output()
    put(output, "<b>one</b>")
    put(output, "<b>two</b>")
    assert [one["data"]["text/html"] for one in output.outputs] == ["<b>two</b>"]

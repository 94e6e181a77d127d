"""The picture of README.md shows the rates of the three arms and the layouts of the artefacts."""

from wiring.figures.picture import verdict_picture
from wiring.workbook import artefacts as a


def test_the_picture_shows_the_rates_and_the_layouts_of_the_artefacts(five):
    layout, patch, rebenchmark = (five[name] for name in ("03_layout", "04_patch", "05_rebenchmark"))
    *bars, predicted, slots = verdict_picture(layout, patch, rebenchmark).data
    arms = (rebenchmark.plain, rebenchmark.as_served, rebenchmark.cured)
    assert [bar.y[0] for bar in bars] == [arm.tok_per_s for arm in arms]
    assert predicted.y[0] == rebenchmark.prediction.speedup * rebenchmark.plain.tok_per_s
    assert list(slots.y) == ["trained", "as served", "cured"] and slots.xaxis == "x2"
    assert list(slots.text[0]) == ["embedding", "after 3 layers", "after 31 layers"]
    right = [
        [float(b == t) for b, t in zip(row, layout.trained, strict=True)]
        for row in (layout.trained, layout.captured.verify)
    ]
    assert [list(row) for row in slots.z[:2]] == right
    served = layout.model_copy(update={"captured": a.PhaseLayout(prefill=(0, 3, 31), verify=(0, 3, 31))})
    assert list(verdict_picture(served, patch, rebenchmark).data[-1].z[1]) == [1, 1, 1]

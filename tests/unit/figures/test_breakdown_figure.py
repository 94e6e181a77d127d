"""The breakdown has a bar per step; round cost shows measured, fitted and lower limit by tokens verified."""

import numpy as np
import pytest

from wiring.bench.round_cost import Estimate, MeasuredRoundCost, fit_rounds
from wiring.bench.speedup_breakdown import ServedRate, break_down
from wiring.bench.tuning import PredictedChain
from wiring.figures import round_cost, speedup_breakdown


@pytest.fixture
def breakdown():
    chain = PredictedChain(5, Estimate(3.43), Estimate(2.96), Estimate(1.16, 0.1))
    cured = ServedRate(3.43, 104.5)
    rates = dict(plain_tok_per_s=90, today=ServedRate(1.8, 54.8), cured=cured, draft_share=1 / 61)
    return break_down(steps=5, round_cost=2.96, tuned=[chain], **rates)


def test_each_step_has_a_bar_with_its_rate_and_predictions_are_hatched(breakdown):
    fig = speedup_breakdown(breakdown)
    names = ["today", "wiring cured", "settings tuned", "round at its floor", "perfect draft"]
    assert [bar.x[0] for bar in fig.data] == names
    np.testing.assert_allclose([bar.y[0] for bar in fig.data], [step.tok_per_s for step in breakdown.steps])
    assert [bool(bar.marker.pattern.shape) for bar in fig.data] == [False, False, True, True, True]
    labels = fig.layout.xaxis.ticktext
    assert labels[0] == "today<br>0.61x" and labels[1].startswith("wiring cured<br>1.16x<br>gain 1.9")
    assert fig.data[2].error_y.array[0] == pytest.approx(104.5 * 0.1 / 1.16)
    assert "tokens per second" in fig.layout.yaxis.title.text and fig.layout.shapes[0].y0 == 90
    assert breakdown.rule in fig.layout.annotations[-1].text.replace("<br>", " ")


def test_round_costs_are_drawn_by_tokens_verified():
    model = fit_rounds([MeasuredRoundCost(steps, 1.1 + 0.1 * steps, 0.02) for steps in (1, 5, 7)])
    measured, fitted, floor = round_cost(model, 0.02).data
    assert tuple(measured.x) == (2, 6, 8) == tuple(fitted.x) == tuple(floor.x)
    np.testing.assert_allclose(measured.y, (1.2, 1.6, 1.8))
    np.testing.assert_allclose(fitted.y, measured.y)
    np.testing.assert_allclose(floor.y, (1.02, 1.10, 1.14))
    np.testing.assert_allclose(measured.error_y.array, [1.96 * 0.02] * 3)
    fig = round_cost(model, 0.02)
    assert fig.layout.yaxis.range[1] > 1.8 + 1.96 * 0.02  # whiskers are within
    assert [text.strip() for text in fig.data[0].text] == ["1 steps", "5 steps", "7 steps"]
    assert "plain steps" in fig.layout.yaxis.title.text and "tokens verified" in fig.layout.xaxis.title.text
    assert "draft step with its verified token 0.100" in fig.layout.annotations[-1].text.replace("<br>", " ")

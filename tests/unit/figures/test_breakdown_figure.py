"""The breakdown has a bar per step; round cost shows measured, fitted and lower limit by tokens verified."""

import numpy as np
import pytest

from wiring.bench.round_cost import Estimate, PricedRound, chain, fit_rounds
from wiring.bench.speedup_breakdown import Served, ladder
from wiring.engines.sglang import Speculation
from wiring.figures import round_cost, speedup_breakdown


@pytest.fixture
def rungs():
    return ladder(
        plain_tok_per_s=90,
        setting=chain(5),
        price=Estimate(2.96, 0.1),
        today=Served(1.8, 54.8),
        cured=Served(3.43),
        draft_share=1 / 61,
    )


def test_each_step_has_a_bar_with_its_rate_and_predictions_are_hatched(rungs):
    fig = speedup_breakdown(rungs)
    assert [bar.x[0] for bar in fig.data] == ["today", "wiring cured", "round at its floor", "perfect draft"]
    np.testing.assert_allclose([bar.y[0] for bar in fig.data], [rung.tok_per_s for rung in rungs.rungs])
    assert [bool(bar.marker.pattern.shape) for bar in fig.data] == [False, True, True, True]
    labels = fig.layout.xaxis.ticktext
    assert labels[0] == "today<br>0.61x" and labels[1].startswith("wiring cured<br>1.16x<br>gain 1.9")
    assert fig.data[1].error_y.array[0] == pytest.approx(90 * 3.43 / 2.96 * 0.1 / 2.96)
    assert "tokens per second" in fig.layout.yaxis.title.text and fig.layout.shapes[0].y0 == 90
    caption = fig.layout.annotations[-1].text.replace("<br>", " ")
    assert rungs.rule in caption and "Not computed: settings tuned" in caption


def test_round_costs_are_drawn_by_tokens_verified():
    settings = (chain(1), chain(5), Speculation(4, 2, 8))
    model = fit_rounds([PricedRound(s, 1 + 0.1 * s.draft_tokens, 0.02) for s in settings])
    measured, fitted, floor = round_cost(model, 0.02).data
    assert tuple(measured.x) == (2, 6, 8) == tuple(fitted.x) == tuple(floor.x)
    np.testing.assert_allclose(measured.y, (1.2, 1.6, 1.8))
    np.testing.assert_allclose(fitted.y, measured.y)
    np.testing.assert_allclose(floor.y, (1.02, 1.10, 1.08))
    np.testing.assert_allclose(measured.error_y.array, [1.96 * 0.02] * 3)
    fig = round_cost(model, 0.02)
    assert fig.layout.yaxis.range[1] > 1.8 + 1.96 * 0.02  # whiskers are within
    assert [text.strip() for text in fig.data[0].text] == ["1 steps, top-1", "5 steps, top-1", "4 steps, top-2"]
    assert "plain steps" in fig.layout.yaxis.title.text and "tokens verified" in fig.layout.xaxis.title.text
    assert "verified token 0.100" in fig.layout.annotations[-1].text.replace("<br>", " ")

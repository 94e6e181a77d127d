"""The ladder of the recorded case: its measured rungs are the recorded figures, its price that of the recorded run."""

import json

import pytest

from wiring.bench.cost_model import round_line
from wiring.bench.measurement import Measurement
from wiring.bench.round_cost import chain
from wiring.bench.speedup_breakdown import CURED, FLOOR, PERFECT, TODAY, TUNED
from wiring.errors import WiringError
from wiring.workbook.artefacts import Rebenchmark
from wiring.workbook.case import open_case
from wiring.workbook.speed_limit import case_limit, draft_share


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return open_case(profile="cpu-tiny", run=str(tmp_path_factory.mktemp("run")), measure="recorded")


@pytest.fixture(scope="module")
def limit(case):
    measured, costs = (case.read_recorded(name, Measurement) for name in ("05_measured", "05_costs"))
    return case_limit(case, measured, costs)


@pytest.fixture(scope="module")
def recorded(case):
    return case.read_recorded("05_rebenchmark", Rebenchmark)


def test_the_measured_rungs_are_the_recorded_figures(limit, recorded):
    for name, arm in ((TODAY, recorded.as_served), (CURED, recorded.cured)):
        rung = limit.ladder.rung(name)
        assert rung.measured and rung.speedup == pytest.approx(arm.speedup)
        assert rung.accept_length == pytest.approx(arm.accept_length)
    assert [rung.name for rung in limit.ladder.rungs] == [TODAY, CURED, TUNED, FLOOR, PERFECT]
    assert not limit.ladder.missing


def test_the_price_agrees_with_the_line_of_the_recorded_run(limit, recorded):
    prices = {int(steps): cost for steps, cost in recorded.round_costs.items()}
    for steps in (3, 5, 7):
        assert limit.model.price(chain(steps)).value == pytest.approx(round_line(prices, steps), rel=0.1)
    assert limit.model.chains_only and limit.model.residual < 0.1


def test_the_ladder_rises_and_the_limit_is_that_of_its_floor(case, limit):
    speeds = [rung.speedup for rung in limit.ladder.rungs]
    assert speeds == sorted(speeds)
    share = draft_share(case)
    assert share == pytest.approx(1 / 61)
    floor = limit.ladder.rung(FLOOR)
    assert floor.price == pytest.approx(1 + floor.setting.steps / 61)
    # With the prefill on both sides the limit lies below steps + 1 over that price.
    perfect = limit.ladder.rung(PERFECT)
    assert perfect.speedup < 1.1 * (perfect.setting.steps + 1) / perfect.price


def test_chains_are_ranked_up_to_the_longest_priced_one(limit):
    assert {o.setting.steps for o in limit.outlooks} == set(range(1, 8))
    assert {o.setting.steps for o in limit.outlooks if o.extrapolated} == {6, 7}
    assert all(o.speedup.error > 0 for o in limit.outlooks)


def test_the_limit_is_json(limit):
    told = json.loads(json.dumps(limit.as_json()), parse_constant=lambda name: pytest.fail(name))
    assert len(told["ladder"]["rungs"]) == 5 and told["model"]["chains_only"] is True


def test_a_case_that_serves_trees_needs_a_sweep(case):
    asked = case.profile.speculation.model_copy(update={"topk": 4})
    trees = type(case)(
        case.profile.model_copy(update={"speculation": asked}),
        *(getattr(case, name) for name in ("folder", "recorded", "measure", "standalone")),
    )
    measured, costs = (case.read_recorded(name, Measurement) for name in ("05_measured", "05_costs"))
    with pytest.raises(WiringError, match="needs a chain"):
        case_limit(trees, measured, costs)

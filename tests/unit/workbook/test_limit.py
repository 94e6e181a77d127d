"""The speed-up breakdown of the recorded case gives the recorded figures and round costs."""

import pytest

from wiring.bench.measurement import Measurement
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


def test_the_measured_steps_are_the_recorded_figures(limit, recorded):
    today, cured, *_ = limit.breakdown.steps
    for step, arm in ((today, recorded.as_served), (cured, recorded.cured)):
        assert step.measured and step.speedup == pytest.approx(arm.speedup)
        assert step.accept_length == pytest.approx(arm.accept_length)
    assert [step.name for step in limit.breakdown.steps] == [TODAY, CURED, TUNED, FLOOR, PERFECT]


def test_the_round_cost_agrees_with_the_line_of_the_recorded_run(limit, recorded):
    three, seven = (recorded.round_costs[steps] for steps in (3, 7))
    for steps, cost in ((3, three), (5, (three + seven) / 2), (7, seven)):
        assert limit.model.cost(steps).value == pytest.approx(cost, rel=0.1)
    assert limit.model.residual < 0.1


def test_the_breakdown_rises_to_the_limit_of_the_lowest_round_cost(case, limit):
    speeds = [step.speedup for step in limit.breakdown.steps]
    assert speeds == sorted(speeds)
    assert draft_share(case) == pytest.approx(1 / 61)
    *_, floor, perfect = limit.breakdown.steps
    assert floor.price == pytest.approx(1 + floor.steps / 61)
    # With the prefill on both sides the limit lies below steps + 1 over that cost.
    assert perfect.speedup < 1.1 * (perfect.steps + 1) / perfect.price


def test_chains_are_ranked_up_to_the_longest_measured_one(limit):
    assert {one.steps for one in limit.chains} == set(range(1, 8))
    assert {one.steps for one in limit.chains if one.extrapolated} == {6, 7}
    assert all(one.speedup.error > 0 for one in limit.chains)


def test_a_case_that_serves_trees_has_no_breakdown(case):
    asked = case.profile.speculation.model_copy(update={"topk": 4})
    trees = type(case)(
        case.profile.model_copy(update={"speculation": asked}),
        *(getattr(case, name) for name in ("folder", "recorded", "measure", "standalone")),
    )
    measured, costs = (case.read_recorded(name, Measurement) for name in ("05_measured", "05_costs"))
    with pytest.raises(WiringError) as error:
        case_limit(trees, measured, costs)
    assert (error.value.code, error.value.found) == ("breakdown-of-tree", "4")

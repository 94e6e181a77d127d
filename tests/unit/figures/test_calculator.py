"""The calculator reproduces published figures and closed forms, and its sliders change the curves."""

from dataclasses import replace

import ipywidgets
import pytest
from panel_parts import by_description

from wiring.bench.measurement import Measurement
from wiring.bench.round_cost import MeasuredRoundCost, fit_rounds
from wiring.engines.sglang import Speculation
from wiring.errors import WiringError
from wiring.figures import calculator_panel
from wiring.figures import speculation_calculator as calc
from wiring.workbook.artefacts import Rebenchmark
from wiring.workbook.case import open_case
from wiring.workbook.speed_limit import case_limit

CURED, SERVED, ALONE = "case study, cured", "case study, as served", "case study, by the draft's own accuracy"


@pytest.fixture(scope="module")
def study():
    return calc.case_study()


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return open_case(profile="cpu-tiny", run=str(tmp_path_factory.mktemp("run")), measure="recorded")


@pytest.fixture(scope="module")
def measured(case):
    return case.read_recorded("05_measured", Measurement)


@pytest.fixture(scope="module")
def arms(case):
    return case.read_recorded("05_rebenchmark", Rebenchmark)


@pytest.fixture(scope="module")
def recorded(case, measured, arms):
    """Return the recorded case by arm: (the arm, the inputs of the calculator)."""
    model = case_limit(case, measured, case.read_recorded("05_costs", Measurement)).model
    asked = case.profile.speculation.speculation()
    return {arm.arm: (arm, calc.from_arm(arm, arms.plain, model, asked)) for arm in (arms.as_served, arms.cured)}


def test_the_round_cost_is_that_of_the_fitted_model_with_its_bend(arms):
    model = fit_rounds([MeasuredRoundCost(n, 1.1 + 0.02 * n + 0.3 * max(0, n + 1 - 4)) for n in range(1, 9)])
    assert model.bend == 4
    assumed = calc.from_arm(arms.cured, arms.plain, model, Speculation(5, 1, 6))
    for steps in range(1, 13):
        assert calc.outcome(assumed, steps).round_cost == pytest.approx(model.cost(steps).value)
    caption = calc.break_even_by_steps(assumed).layout.annotations[-1].text.replace("<br>", " ")
    assert "0.300 more for each beyond 4" in caption


def test_measured_rates_exclude_the_prefill(recorded, measured):
    """Compare with all tokens of all rounds over all their seconds: a mean, where the calculator takes medians."""
    for name, (_, assumed) in recorded.items():
        for trials, rate in ((measured.arm(name), assumed.measured), (measured.arm("plain"), assumed.plain_tok_per_s)):
            decode = sum(t.seconds - t.prefill_s for t in trials)
            tokens = sum(t.correct_drafts + t.rounds if t.rounds else len(t.output_ids) - 1 for t in trials)
            assert rate == pytest.approx(tokens / decode, rel=0.08)
            assert rate > sum(len(t.output_ids) for t in trials) / sum(t.seconds for t in trials)


@pytest.mark.parametrize(
    ("name", "length", "tok_per_s"), [(CURED, 1.8, 54.8), (SERVED, 1.53, 46.7), (ALONE, 3.43, 104.5)]
)
def test_the_case_study_gives_its_published_figures(study, name, length, tok_per_s):
    out = calc.outcome(study[name])
    assert out.accept_length == pytest.approx(length, abs=0.005)
    assert out.tok_per_s == pytest.approx(tok_per_s, abs=0.06)
    assert out.round_cost == pytest.approx(2.96, abs=0.005)


def test_the_recorded_case_gives_what_was_measured(recorded):
    for arm, assumed in recorded.values():
        out = calc.outcome(assumed)
        assert out.accept_length == pytest.approx(arm.accept_length)  # 1 + the sum of the marginals
        assert out.tok_per_s == pytest.approx(assumed.measured, rel=0.1)
        assert out.draft_tokens == 6 and assumed.draft_tokens == 8


@pytest.mark.parametrize(("acceptance", "steps"), [(0.0, 3), (0.5, 1), (0.769, 5), (0.99, 12)])
def test_equal_acceptance_is_the_inverse_of_the_geometric_sum(acceptance, steps):
    length = (1 - acceptance ** (steps + 1)) / (1 - acceptance)
    assert calc.equal_acceptance(length, steps) == pytest.approx(acceptance, abs=1e-9)
    with pytest.raises(WiringError) as error:
        calc.equal_acceptance(steps + 1.5, steps)
    assert error.value.code == "accept-length-unreachable"


def test_drafts_beyond_the_verified_tokens_cost_time_and_are_never_accepted():
    assumed = calc.Assumed((0.5,), steps=4, draft_tokens=3, draft=0.1, verify=1.0, plain_tok_per_s=10, token=0.05)
    resolved, asked = calc.outcome(assumed), calc.outcome(replace(assumed, resolved=False))
    assert (resolved.draft_tokens, asked.draft_tokens) == (5, 3)
    assert resolved.accept_length == pytest.approx(1 + 0.5 + 0.25 + 0.125 + 0.0625)
    assert asked.accept_length == pytest.approx(1 + 0.5 + 0.25)
    assert resolved.round_cost == pytest.approx(1 + 0.05 * 4 + 0.1 * 4) and asked.round_cost == pytest.approx(
        1 + 0.05 * 2 + 0.4
    )
    assert "3 asked: with top-k 1" in calc.outcome_text(assumed) and "does not pay" in calc.outcome_text(
        replace(assumed, verify=3.0)
    )


def test_the_curves_are_the_outcomes_and_the_draft_pays_where_they_cross(study):
    assumed = study[ALONE]
    rate = {trace.name: trace for trace in calc.tok_per_s_by_steps(assumed).data}
    length, price, _ = calc.break_even_by_steps(assumed).data
    assert list(price.y) == pytest.approx([1 + 1.956 / 5 * n for n in range(1, 13)], abs=0.01)
    pays = [a > b for a, b in zip(length.y, price.y, strict=True)]
    assert pays == [y > 90 for y in rate["computed"].y] and True in pays and False in pays
    assert "measured" not in rate and "measured" in {trace.name for trace in calc.tok_per_s_by_steps(study[CURED]).data}


def curves(box):
    (output,) = [child for child in box.children if isinstance(child, ipywidgets.Output)]
    figures = [one["data"]["application/vnd.plotly.v1+json"] for one in output.outputs]
    return [{trace["name"]: trace["y"] for trace in figure["data"]} for figure in figures]


def test_each_slider_moves_the_curves(study):
    box = calculator_panel(study)
    for description, value in (
        ("draft 1 accepted, if reached", 0.9),
        ("draft steps", 3),
        ("draft step, in plain steps", 0.05),
        ("verify, in plain steps", 2.0),
        ("each further token verified", 0.1),
        ("plain decoding, tok/s", 45.0),
    ):
        before = curves(box)
        by_description(box)[description].value = value
        assert curves(box) != before, description
    words = box.children[2].value
    by_description(box)["draft tokens (asked)"].value = 2
    assert box.children[2].value != words and "2 asked" in box.children[2].value
    before = curves(box)
    by_description(box)["as SGLang resolves them (top-k 1)"].value = False
    assert curves(box) != before and "2 tokens verified:" in box.children[2].value


def test_loading_measured_values_sets_every_slider_and_their_point(recorded, study):
    presets = {name: assumed for name, (_, assumed) in recorded.items()} | study
    box = calculator_panel(presets)
    found = by_description(box)
    assert curves(box)[0]["measured"] == [recorded["as served"][1].measured]
    found["load"].value = "cured"
    arm, assumed = recorded["cured"]
    assert found["draft 2 accepted, if reached"].value == pytest.approx(arm.acceptance_conditional[1])
    assert found["verify, in plain steps"].value == pytest.approx(assumed.verify)
    assert curves(box)[0]["computed"][4] == pytest.approx(calc.outcome(assumed).tok_per_s, abs=1e-3)
    assert curves(box)[0]["measured"] == [assumed.measured]
    found["draft 1 accepted, if reached"].value = 0.5
    assert "measured" not in curves(box)[0] and "set by hand" in box.children[2].value
    found["load"].value = CURED
    assert f"{54.8:.1f} tok/s" in box.children[2].value

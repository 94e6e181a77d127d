"""Verdicts: what is named, what is left, and what is asked for next."""

import pytest
from evidence_builders import alone, measured

from wiring.diagnosis.symptom_table import SYMPTOMS, Symptom
from wiring.diagnosis.verdict import diagnose, judge
from wiring.logs.evidence import Evidence, FactRecord, LintRecord, Setting, SlotRecord, SpeedRecord

GOOD = tuple(0.7**k for k in range(1, 6))
HEALTHY = dict(
    setting=Setting(steps=5, trained_layout=(0, 3, 31)),
    accuracy=(*alone(0.7), *alone(0.7, side="S")),
    slots=tuple(
        SlotRecord(source="dump", phase="verify", slot=k, boundary=b, cosine=1.0, norm_ratio=1.0)
        for k, b in enumerate((0, 3, 31))
    ),
    acceptance=(
        measured(1 + sum(GOOD), 1500, GOOD),
        measured(2.7, 1500, cached=False),
        measured(2.7, 1500, cached=True),
        measured(2.7, 1500, cuda_graphs=False),
        measured(2.69, 1500, cuda_graphs=True),
    ),
    facts=(
        FactRecord(source="lint", letter="L", name="lint_made", value=True),
        FactRecord(source="text", letter="P", name="outputs_equal_plain", value=True),
    ),
)


def speed(step_s, round_s):
    return (SpeedRecord(source="p", arm="plain", step_s=step_s), SpeedRecord(source="d", arm="draft", round_s=round_s))


def named(**changes):
    return diagnose(Evidence(**{**HEALTHY, **changes})).named


def test_a_healthy_server_has_no_fault():
    verdict = diagnose(Evidence(**HEALTHY, speed=speed(0.010, 0.015)))
    assert verdict.named == () and verdict.healthy and verdict.enough_evidence and verdict.check is None
    assert "wiring is right" in verdict.summary


def test_a_negative_result_is_a_result():
    verdict = diagnose(Evidence(**HEALTHY, speed=speed(0.010, 0.031)))
    assert verdict.named == (24,)
    assert "A round costs 3.10 plain steps" in verdict.summary


def test_two_faults_at_once_are_both_named():
    changed = LintRecord(source="lint", kind=21, severity="error", evidence="asked for 8, runs with 6")
    served = tuple(SlotRecord(source="dump", phase="verify", slot=k, boundary=b) for k, b in enumerate((3, 31, 59)))
    cached = (
        measured(1.18, 1500, (0.16, 0.02, 0, 0, 0)),
        measured(1.3, 9000, cached=False),
        measured(1.1, 9000, cached=True),
    )
    low = (measured(1.18, 1500, (0.16, 0.02, 0, 0, 0)),)
    accuracy = (*alone(0.7), *alone(0.15, side="S"))
    assert set(named(lint=(changed,), slots=served, acceptance=low, accuracy=accuracy)) == {1, 21}
    assert set(named(slots=served, acceptance=cached, accuracy=accuracy)) == {1, 15}
    assert set(named(lint=(changed,), speed=speed(0.01, 0.04))) == {21, 24}


@pytest.mark.parametrize(
    ("condition", "values", "fault"),
    [
        ("cached", (False, True), 15),
        ("chunked", (False, True), 16),
        ("batch", (1, 8), 18),
        ("attention_backend", ("a", "b"), 19),
        ("acceptance_rule", ("rejection", "strict"), 20),
        ("draft_kv_dtype", ("bf16", "fp8"), 12),
        ("draft_quantisation", ("none", "int4"), 11),
        ("fused_all_reduce", (False, True), 4),
        ("topk", (1, 4), 17),
    ],
)
def test_a_contrast_alone_names_its_fault(condition, values, fault):
    arms = tuple(measured(length, 4000, **{condition: value}) for length, value in zip((3.0, 1.9), values, strict=True))
    assert diagnose(Evidence(acceptance=arms)).named == (fault,)


def test_what_fits_several_faults_is_not_named_but_asked_for():
    arms = (measured(3.0, 4000, tp=1), measured(1.9, 4000, tp=2))
    verdict = diagnose(Evidence(acceptance=arms))
    assert verdict.named == () and {4, 8} <= set(verdict.candidates) and not verdict.enough_evidence
    assert verdict.check is not None and set(verdict.check.decides) & {
        "embedding_ranks_differ",
        "ranks_differ",
        "lint_error_8",
    }


def test_a_fall_with_the_temperature_asks_for_the_rule_in_force():
    # any rule accepts less at a higher temperature, for the target itself is less sure
    arms = (measured(3.0, 4000, temperature=0.0), measured(1.9, 4000, temperature=1.0))
    verdict = diagnose(Evidence(acceptance=arms))
    assert verdict.named == () and verdict.candidates == (20,) and verdict.ranking[0].fault == 20
    assert "differs_between_acceptance_rules" in verdict.check.decides


def test_cuda_graphs_alone_leave_verify_on_other_layers_open():
    # SGLang before 0.5.11 captures its verify graphs on the default layers
    arms = (measured(3.0, 4000, cuda_graphs=False), measured(1.9, 4000, cuda_graphs=True))
    verdict = diagnose(Evidence(acceptance=arms))
    assert verdict.named == () and set(verdict.candidates) == {1, 18}
    right = HEALTHY["slots"]
    assert diagnose(Evidence(acceptance=arms, slots=right, setting=HEALTHY["setting"])).named == (18,)


def test_the_next_check_is_not_one_that_was_made():
    few = Evidence(acceptance=(measured(1.02, 4000),))
    first = diagnose(few)
    assert first.check.name == "lint"
    made = FactRecord(source="lint", letter="L", name="lint_made", value=True)
    second = diagnose(Evidence(acceptance=few.acceptance, facts=(made,)))
    assert second.check is not None and second.check.name != "lint"


def test_proof_that_the_layout_is_right_speaks_against_a_warning():
    warning = LintRecord(source="lint", kind=1, severity="warning", evidence="default layers are assumed")
    (row,) = [c for c in diagnose(Evidence(lint=(warning,))).ranking if c.fault == 1]
    assert row.score == pytest.approx(2)
    assert all(c.fault != 1 for c in diagnose(Evidence(**HEALTHY, lint=(warning,))).ranking)


def test_a_score_is_the_sum_of_its_bits():
    found = [Symptom(n, True, 0.5, SYMPTOMS[n].letter, n, "test") for n in ("ranks_differ", "falls_with_tp")]
    (row,) = [c for c in judge(found).ranking if c.fault == 4]
    assert row.score == pytest.approx(sum(SYMPTOMS[s.name].present for s in found) / 2)
    assert [said.symptom.name for said in row.speaks_for] == ["ranks_differ", "falls_with_tp"]

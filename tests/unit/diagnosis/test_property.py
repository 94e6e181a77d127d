"""What must hold for any evidence: order and repetition change nothing, and more evidence for a fault helps it."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from wiring.diagnosis.fault_catalogue import FAULT_CATALOGUE
from wiring.diagnosis.find_symptoms import symptoms_of
from wiring.diagnosis.symptom_table import SYMPTOMS, Symptom
from wiring.diagnosis.verdict import MARGIN, NAMED, diagnose, judge, score
from wiring.logs.evidence import (
    AcceptanceRecord,
    AccuracyRecord,
    ArgumentRecord,
    DifferenceRecord,
    Evidence,
    FactRecord,
    LintRecord,
    Setting,
    SlotRecord,
    SpeedRecord,
)

FAST = settings(max_examples=60, deadline=None, derandomize=True)
NAMES = st.sampled_from(sorted(SYMPTOMS))
LENGTHS = st.floats(1.0, 5.0)
PARTS = ("lint", "arguments", "accuracy", "slots", "acceptance", "differences", "speed", "facts")


@st.composite
def symptoms(draw, names=NAMES):
    found = draw(st.lists(names, unique=True, max_size=12))
    return [
        Symptom(n, draw(st.booleans()), draw(st.sampled_from([0.5, 0.8, 1.0])), SYMPTOMS[n].letter, n, "test")
        for n in found
    ]


CONDITIONS = st.fixed_dictionaries(
    {},
    optional={
        "cached": st.booleans(),
        "batch": st.sampled_from([1, 8]),
        "temperature": st.sampled_from([0.0, 1.0]),
        "hours": st.floats(0, 9),
        "prompt_tokens": st.integers(1, 9000),
        "version": st.sampled_from(["a", "b"]),
    },
)
SOURCES = st.sampled_from(["a", "b"])
COUNTS = st.one_of(st.none(), st.integers(1, 10_000))
RECORDS = {
    "lint": st.builds(
        LintRecord,
        source=SOURCES,
        kind=st.integers(1, 25),
        evidence=st.just("e"),
        severity=st.sampled_from(["error", "warning", "note"]),
    ),
    "arguments": st.builds(
        ArgumentRecord,
        source=SOURCES,
        name=st.sampled_from(["steps", "draft_quantisation"]),
        asked=st.sampled_from([None, 4, "none"]),
        resolved=st.sampled_from([None, 6, 4]),
    ),
    "accuracy": st.builds(
        AccuracyRecord,
        source=SOURCES,
        side=st.sampled_from(["T", "S"]),
        depth=st.integers(0, 2),
        accuracy=st.floats(0, 1),
        rows=COUNTS,
        claimed=st.booleans(),
        control=st.sampled_from(["", "shifted +1"]),
        text=st.sampled_from(["training", "held_out", "served", "other"]),
    ),
    "slots": st.builds(
        SlotRecord,
        source=SOURCES,
        phase=st.sampled_from(["prefill", "verify"]),
        slot=st.integers(0, 2),
        boundary=st.sampled_from([None, 0, 3, 31, 32]),
        shift=st.sampled_from([0, 1]),
        transform=st.sampled_from(["raw", "normed", "partial sum", "drifted"]),
        cosine_wanted=st.one_of(st.none(), st.floats(-1, 1)),
        norm_ratio_wanted=st.one_of(st.none(), st.floats(0, 3)),
        ranks_agree=st.sampled_from([None, True, False]),
    ),
    "acceptance": st.builds(
        AcceptanceRecord,
        source=SOURCES,
        accept_length=LENGTHS,
        rounds=COUNTS,
        proposed=st.sampled_from([None, 5]),
        condition=CONDITIONS,
        by_position=st.lists(st.floats(0, 1), max_size=5).map(lambda p: tuple(sorted(p)[::-1])),
    ),
    "differences": st.builds(
        DifferenceRecord,
        source=SOURCES,
        by=st.sampled_from(["cached", "server"]),
        a=st.just(False),
        b=st.just(True),
        accept_length_a=LENGTHS,
        accept_length_b=LENGTHS,
        low=st.floats(-1, 0),
        high=st.floats(0, 1),
        p_value=st.sampled_from([0.001, 0.5]),
        condition=st.sampled_from([{}, {"first_round": True}]),
    ),
    "speed": st.builds(
        SpeedRecord,
        source=SOURCES,
        arm=st.sampled_from(["plain", "draft", "forced"]),
        condition=CONDITIONS,
        tok_per_s=st.floats(1, 100),
        accept_length=st.one_of(st.none(), LENGTHS),
        step_s=st.one_of(st.none(), st.floats(0.01, 1)),
        round_s=st.one_of(st.none(), st.floats(0.01, 1)),
    ),
    "facts": st.one_of(
        st.builds(
            FactRecord,
            source=SOURCES,
            letter=st.just("P"),
            value=st.booleans(),
            name=st.sampled_from(["text_broken", "map_present", "templates_equal", "other_engine_fine"]),
        ),
        st.builds(
            FactRecord,
            source=SOURCES,
            letter=st.just("P"),
            value=st.floats(0, 1),
            name=st.sampled_from(["unique_bigram_share", "drafted_ids_low", "map_coverage"]),
        ),
    ),
}
SETTINGS = st.sampled_from(
    [
        Setting(),
        Setting(topk=1),
        Setting(steps=5, trained_layout=(0, 3, 31), served_layout={"prefill": (3, 31, 59), "verify": None}),
    ]
)
EVIDENCE = st.builds(
    Evidence, setting=SETTINGS, **{part: st.lists(one, max_size=6).map(tuple) for part, one in RECORDS.items()}
)


def shuffled(evidence, seed, again=False):
    """The same records in another order; with `again`, some of them twice."""
    chance = random.Random(seed)
    parts = {}
    for part in PARTS:
        records = list(getattr(evidence, part))
        records += [r for r in records if again and chance.random() < 0.5]
        chance.shuffle(records)
        parts[part] = tuple(records)
    return evidence.model_copy(update=parts)


@FAST
@given(EVIDENCE, st.integers(0, 99))
def test_the_order_of_the_evidence_changes_nothing(evidence, seed):
    assert diagnose(shuffled(evidence, seed)) == diagnose(evidence)


@FAST
@given(EVIDENCE, st.integers(0, 99))
def test_a_record_that_comes_twice_counts_once(evidence, seed):
    assert diagnose(shuffled(evidence, seed, again=True)) == diagnose(evidence)


@FAST
@given(symptoms(), st.integers(0, 99))
def test_the_order_of_the_symptoms_changes_nothing(found, seed):
    other = list(found)
    random.Random(seed).shuffle(other)
    assert judge(other) == judge(found)


def place(verdict, fault):
    """The fault's place in the ranking, beyond all where it is not in it."""
    faults = [candidate.fault for candidate in verdict.ranking]
    return faults.index(fault) if fault in faults else len(FAULT_CATALOGUE)


@FAST
@given(symptoms(), st.sampled_from(sorted(FAULT_CATALOGUE)), st.data())
def test_one_more_symptom_of_a_fault_never_lowers_its_place(found, fault, data):
    open_ = sorted(FAULT_CATALOGUE[fault].causes - {s.name for s in found})
    more = data.draw(st.sampled_from(open_))
    added = Symptom(more, True, data.draw(st.sampled_from([0.5, 0.8, 1.0])), "P", more, "test")
    assert place(judge([*found, added]), fault) <= place(judge(found), fault)


# Evidence of some faults in pieces, each of which decides one more of the fault's symptoms.
def fact(name, value):
    return {"facts": (FactRecord(source=name, letter="P", name=name, value=value),)}


def lint(fault):
    return {"lint": (LintRecord(source="lint", kind=fault, severity="error", evidence="e"),)}


def contrast(name, good, bad):
    arms = ((good, 3.0), (bad, 2.0))
    return {
        "acceptance": tuple(
            AcceptanceRecord(source=f"{name} {value}", accept_length=length, rounds=5000, condition={name: value})
            for value, length in arms
        )
    }


PIECES = {
    4: [contrast("tp", 1, 2), contrast("fused_all_reduce", False, True), contrast("dp", 1, 2), contrast("pp", 1, 2)],
    8: [fact("embedding_equals_target", False), fact("embedding_ranks_agree", False), lint(8), contrast("tp", 1, 2)],
    9: [fact("map_changed", True), fact("map_coverage", 0.2), fact("drafted_ids_low", 1.0), lint(9)],
    11: [
        lint(11),
        fact("load_quantisation", "gptq"),
        fact("drafted_ids_share_top", 1.0),
        contrast("draft_quantisation", "none", "gptq"),
        contrast("target_quantisation", "none", "fp8"),
    ],
    15: [contrast("cached", False, True), contrast("prefix_cache", False, True), fact("restart_cures", True)],
    18: [contrast("cuda_graphs", False, True), contrast("batch", 1, 8), fact("outputs_equal_plain", False)],
    19: [fact("nonfinite_logits", True), fact("text_broken", True), contrast("attention_backend", "a", "b")],
    22: [fact("templates_equal", False), fact("target_changed", True), contrast("domain", "code", "chat")],
    23: [fact("loss_mask_tokens", 0.0), fact("mask_aligned", False), fact("first_answer_position_low", True)],
    25: [fact("unique_bigram_share", 0.1), fact("prompts", 1), fact("random_prompts", True), fact("warmed_up", False)],
}


def joined(pieces):
    parts = {part: [] for part in PARTS}
    for piece in pieces:
        for part, records in piece.items():
            parts[part] += records
    return Evidence(**{part: tuple(records) for part, records in parts.items()})


@FAST
@given(st.sampled_from(sorted(PIECES)), st.data())
def test_more_evidence_for_a_fault_never_lowers_its_place(fault, data):
    others = [piece for pieces in PIECES.values() for piece in pieces if piece not in PIECES[fault]]
    background = data.draw(st.lists(st.sampled_from(others), max_size=4, unique_by=repr))
    pieces = data.draw(st.permutations(PIECES[fault]))
    before = place(diagnose(joined(background)), fault)
    for count in range(1, len(pieces) + 1):
        after = place(diagnose(joined([*background, *pieces[:count]])), fault)
        assert after <= before
        before = after


def test_no_evidence_no_verdict():
    verdict = diagnose(Evidence())
    assert verdict.ranking == () and verdict.named == () and not verdict.enough_evidence and not verdict.healthy
    assert verdict.check.name == "lint" and "wiring lint" in verdict.next_check


@FAST
@given(EVIDENCE)
def test_only_what_leads_clearly_is_named(evidence):
    verdict = diagnose(evidence)
    found = symptoms_of(evidence)
    if not verdict.named:
        return
    first = FAULT_CATALOGUE[verdict.named[0]]
    own = {s.name for s in found if s.present} & first.causes
    assert own and score(first, found, own) >= NAMED
    assert all(
        score(first, found, own) - score(rival, found, own) >= MARGIN
        for rival in FAULT_CATALOGUE.values()
        if rival is not first
    )
    assert verdict.enough_evidence

"""Readings of the evidence, each against a figure worked out otherwise."""

import math
from itertools import pairwise

import pytest
from evidence_builders import alone, measured, states

from wiring.diagnosis.estimates import OTHER_PROMPTS, SAME_PROMPTS, pool, share
from wiring.diagnosis.find_symptoms import normalise_evidence, symptoms_of
from wiring.diagnosis.prediction import predictions
from wiring.logs.evidence import (
    AccuracyRecord,
    ArgumentRecord,
    DifferenceRecord,
    Evidence,
    FactRecord,
    Setting,
    SlotRecord,
    SpeedRecord,
)


def test_wilson_interval_of_a_published_example():
    # Newcombe (1998), Statistics in Medicine 17, table I: 81 of 263, method 3 (Wilson), 0.2553 to 0.3662
    found = share(81 / 263, int(263 * OTHER_PROMPTS))
    assert (found.low, found.high) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    none = share(0.0, int(20 * OTHER_PROMPTS))  # 0 of 20: 0 to 0.1611
    assert (none.low, none.high) == pytest.approx((0.0, 0.1611), abs=5e-5)


def test_the_error_of_pooled_rounds_is_that_of_their_counts():
    # rounds that accept 0, 1, 2 drafts: 500, 300, 200; the variance by hand
    positions = (0.5, 0.2)
    mean = 0.7
    variance = (500 * mean**2 + 300 * (1 - mean) ** 2 + 200 * (2 - mean) ** 2) / 1000
    found = pool([measured(1.7, 1000, positions, 2)])
    assert found.drafts.error == pytest.approx(math.sqrt(variance * OTHER_PROMPTS / 1000))


def test_records_of_one_condition_are_pooled_by_their_rounds():
    found = pool([measured(2.0, 100, proposed=3), measured(3.0, 300, proposed=3)])
    assert found.length == pytest.approx(2.75) and found.rounds == 400


def test_the_accept_length_that_the_draft_alone_predicts():
    # reference/case-study.md: a chain at a constant 76.9 % gives 3.43 at 5 steps; measured 1.8
    evidence = Evidence(accuracy=alone(0.769, depths=1), acceptance=(measured(1.8, 2000),))
    (found,) = predictions(normalise_evidence(evidence))
    assert found.expected.value == pytest.approx(1 + sum(0.769**k for k in range(1, 6)))
    assert found.expected.value == pytest.approx(3.43, abs=0.005)
    assert found.residual == pytest.approx(1.8 - found.expected.value)
    assert states(evidence)["accept_below_training"] is True


@pytest.mark.parametrize("positions", [(0.7, 0.5, 0.3, 0.2), (0.95, 0.9, 0.86, 0.8), (0.3, 0.05, 0.01, 0.001)])
def test_the_error_of_a_predicted_accept_length_is_that_of_the_rounds_that_it_was_counted_in(positions):
    # Shares of one sample of rounds by depth: the delta method gives the variance of the rounds themselves.
    rounds = 1_000_000
    reached = (1.0, *positions)
    rows = tuple(
        AccuracyRecord(
            source="replay", side="T", depth=k, accuracy=b / a, rows=int(rounds * a), text="served", conditional=True
        )
        for k, (a, b) in enumerate(pairwise(reached))
    )
    mean = sum(positions)
    variance = sum((2 * k + 1) * p for k, p in enumerate(positions)) - mean**2
    (found,) = predictions(normalise_evidence(Evidence(accuracy=rows, acceptance=(measured(1.8, 900, proposed=4),))))
    assert found.expected.value == pytest.approx(1 + mean)
    assert found.expected.error == pytest.approx(math.sqrt(variance * SAME_PROMPTS / rounds), rel=0.01)


def test_depths_that_count_the_same_rows_err_together():
    # all depths 0.03 too low, or 0.03 too high, at once
    rows = alone(0.7, low=0.67, high=0.73)
    (found,) = predictions(normalise_evidence(Evidence(accuracy=rows, acceptance=(measured(2.0),))))
    assert found.expected.low == pytest.approx(sum(0.67**k for k in range(6)))
    assert found.expected.high == pytest.approx(sum(0.73**k for k in range(6)))


@pytest.mark.parametrize(("rounds", "decided"), [(4, False), (2000, True)])
def test_few_rounds_decide_nothing(rounds, decided):
    found = states(Evidence(accuracy=alone(0.7), acceptance=(measured(1.9, rounds),)))
    assert ("accept_below_training" in found) is decided


def test_a_healthy_server_is_as_predicted():
    positions = tuple(0.7**k for k in range(1, 6))
    found = states(
        Evidence(
            accuracy=(*alone(0.7), *alone(0.69, side="S")), acceptance=(measured(1 + sum(positions), 1500, positions),)
        )
    )
    assert found["accept_below_training"] is False and found["accept_below_served_states"] is False
    assert found["first_position_low"] is False and found["later_positions_low"] is False
    assert found["served_accuracy_low"] is False and found["accuracy_low"] is False
    assert not any(found.values())


def test_a_first_draft_that_fails_and_later_ones_that_fail():
    first = states(Evidence(accuracy=alone(0.7), acceptance=(measured(1.2, 2000, (0.18, 0.02, 0, 0, 0)),)))
    assert first["first_position_low"] is True and first["later_positions_low"] is False
    later = states(Evidence(accuracy=alone(0.7), acceptance=(measured(1.8, 2000, (0.68, 0.1, 0.02, 0, 0)),)))
    assert later["first_position_low"] is False and later["later_positions_low"] is True


def test_the_accept_length_bounds_the_first_draft():
    found = states(Evidence(accuracy=alone(0.9, depths=1), acceptance=(measured(1.23, 900),)))
    assert found["first_position_low"] is True  # at most 23 % of the rounds accepted one


@pytest.mark.parametrize(
    ("good", "bad", "rounds", "state"),
    [(3.0, 2.6, 5000, True), (3.0, 2.99, 5000, False), (3.0, 2.8, 30, None), (3.0, 2.9, None, None)],
)
def test_a_contrast_needs_effect_and_significance(good, bad, rounds, state):
    found = states(Evidence(acceptance=(measured(good, rounds, cached=False), measured(bad, rounds, cached=True))))
    assert found.get("falls_when_cached") is state


def test_what_is_not_in_use_is_not_the_cause():
    found = states(Evidence(setting=Setting(tp=1, topk=1, cuda_graphs=False, temperature=0.0)))
    assert found["falls_with_tp"] is False and found["falls_with_cuda_graphs"] is False
    assert states(Evidence(setting=Setting(tp=2, topk=4, cuda_graphs=True, temperature=0.6))) == {}
    arms = (measured(3.0, 5000, tp=1), measured(2.0, 5000, tp=2))
    assert states(Evidence(setting=Setting(tp=1), acceptance=arms))["falls_with_tp"] is True


def test_a_fall_from_next_to_nothing_is_none():
    found = states(Evidence(acceptance=(measured(1.19, 9000, cached=False), measured(1.1, 9000, cached=True))))
    assert "falls_when_cached" not in found


def test_a_replay_along_the_same_text_is_a_prediction_to_the_draft():
    row = dict(source="wiring ab", by="server", a=False, b=True, accept_length_a=2.99)
    lower = DifferenceRecord(**row, accept_length_b=2.84, low=-0.2, high=-0.1, p_value=0.004)
    same = DifferenceRecord(**row, accept_length_b=2.99, low=0.0, high=0.0, p_value=1.0)
    assert [states(Evidence(differences=(d,)))["accept_below_training"] for d in (lower, same)] == [True, False]


def test_one_drafted_id_says_nothing_of_the_map():
    def drafted(top):
        facts = (("drafted_ids_low", 1.0), ("drafted_ids_share_top", top))
        return states(Evidence(facts=tuple(FactRecord(source="ids", letter="P", name=n, value=v) for n, v in facts)))

    assert drafted(1.0) == {"drafts_one_id": True}
    assert drafted(0.1) == {"drafts_one_id": False, "drafts_low_ids": True}


def test_a_contrast_of_two_conditions_is_none():
    arms = (measured(3.0, 5000, cached=False, batch=1), measured(2.0, 5000, cached=True, batch=8))
    found = states(Evidence(acceptance=arms))
    assert "falls_when_cached" not in found and "falls_with_batch" not in found


def test_the_first_draft_does_not_depend_on_the_steps_behind_it():
    def chain(steps, first):
        positions = tuple(first * 0.7**k for k in range(steps))
        return measured(1 + sum(positions), 4000, positions, steps, steps=steps)

    assert states(Evidence(acceptance=(chain(1, 0.7), chain(5, 0.7))))["falls_with_steps"] is False
    assert states(Evidence(acceptance=(chain(1, 0.7), chain(5, 0.5))))["falls_with_steps"] is True


@pytest.mark.parametrize(("first", "later", "name"), [(0.2, 0.7, "first_round_low"), (0.7, 0.2, "later_rounds_low")])
def test_the_first_round_against_later_ones(first, later, name):
    arms = (
        measured(None, 300, (first, first / 2), 2, first_round=True),
        measured(None, 4000, (later, later / 2), 2, first_round=False),
    )
    found = states(Evidence(acceptance=arms))
    assert found[name] is True and sum(found[n] for n in ("first_round_low", "later_rounds_low") if n in found) == 1


def first_rounds(replayed, served, p_value, low, high, topk=1, **more):
    """The server's first rounds after the prefill against a replay's, and all rounds against the draft alone."""
    row = DifferenceRecord(
        source="first rounds",
        by="server",
        a=False,
        b=True,
        accept_length_a=replayed,
        p_value=p_value,
        accept_length_b=served,
        low=low,
        high=high,
        condition={"first_round": True},
    )
    return Evidence(setting=Setting(topk=topk), differences=(row,), **more)


def test_first_rounds_as_the_draft_alone_and_later_ones_below_tell_the_rows_behind_the_prompt():
    whole = dict(accuracy=alone(0.7), acceptance=(measured(1.8, 2000),))
    fine = states(first_rounds(3.1, 3.1, 1.0, 0.0, 0.0, **whole))
    assert fine["first_round_below_training"] is False and fine["accept_below_training"] is True
    assert fine["later_rounds_low"] is True
    low = states(first_rounds(3.1, 1.9, 0.0001, -1.6, -0.8, **whole))
    assert low["first_round_below_training"] is True and low["later_rounds_low"] is False
    good = dict(accuracy=alone(0.7), acceptance=(measured(1 + sum(0.7**k for k in range(1, 6)), 2000),))
    healthy = states(first_rounds(3.1, 3.1, 1.0, 0.0, 0.0, **good))
    assert healthy["accept_below_training"] is False and "later_rounds_low" not in healthy


def test_first_rounds_alone_say_nothing_of_all_rounds_nor_of_a_trees_rows():
    assert states(first_rounds(3.1, 3.1, 1.0, 0.0, 0.0)) == {
        "first_round_below_training": False,
        "falls_with_topk": False,
    }
    assert states(first_rounds(3.1, 1.9, 0.0001, -1.6, -0.8, topk=4)) == {}
    arms = tuple(
        measured(length, 4000, server=server, first_round=True) for length, server in ((3.0, False), (1.9, True))
    )
    other = measured(2.9, 4000, server=False, first_round=False)
    found = states(Evidence(setting=Setting(topk=1), acceptance=(*arms, other)))
    assert found["first_round_below_training"] is True and "accept_below_training" not in found


def test_a_fault_that_must_show_somewhere_is_ruled_out_by_all_of_its_places():
    arms = tuple(measured(3.0, 5000, prompt_tokens=n) for n in (40, 4000))
    text = Setting(topk=1, target_config={"num_hidden_layers": 4}, batch=1, cuda_graphs=False)
    first = first_rounds(3.1, 3.1, 1.0, 0.0, 0.0).differences
    found = states(Evidence(setting=text, acceptance=arms, differences=first, accuracy=alone(0.7)))
    assert found["positions_tell"] is False and found["graph_or_batch_tells"] is False
    assert "positions_tell" not in states(Evidence(setting=text, acceptance=arms, accuracy=alone(0.7)))
    # In the checkpoint's own config the draft alone shows it.
    assert states(Evidence(setting=text, acceptance=arms, differences=first, accuracy=alone(0.2)))["positions_tell"]


def test_where_the_engines_draft_departs_from_a_reference_forward():
    def departs(value):
        return states(Evidence(facts=(FactRecord(source="hooks", letter="P", name="draft_departs_at", value=value),)))

    assert departs("rotation") == {"draft_rotation_differs": True}
    assert departs("norm") == departs("residual") == {"draft_norm_differs": True}
    assert departs("embedding") == {"embedding_differs": True}
    assert len(departs("nothing")) == 5 and not any(departs("nothing").values())  # the file's own faults stay open


def test_a_draft_that_is_low_with_sound_files_did_not_learn():
    made = FactRecord(source="lint", letter="L", name="lint_made", value=True)
    low = Evidence(accuracy=alone(0.2), facts=(made,))
    assert states(low)["low_with_sound_files"] is True
    other = FactRecord(source="sum", letter="L", name="map_changed", value=True)
    assert "low_with_sound_files" not in states(Evidence(accuracy=alone(0.2), facts=(made, other)))
    found = states(Evidence(accuracy=(*alone(0.62, depths=1), *alone(0.04)[1:]), facts=(made,)))
    assert found["accuracy_collapses_with_depth"] is True and "accuracy_low" not in found


def test_many_lengths_are_compared_by_thirds():
    arms = tuple(measured(3.0 - n / 10_000, 200, prompt_tokens=n) for n in range(500, 16_000, 500))
    assert states(Evidence(acceptance=arms))["falls_with_prompt_length"] is True
    flat = tuple(measured(3.0, 200, prompt_tokens=n) for n in range(500, 16_000, 500))
    assert states(Evidence(acceptance=flat))["falls_with_prompt_length"] is False


def test_a_tested_difference_counts_as_a_contrast():
    row = dict(source="wiring ab", by="cached", a=False, b=True, accept_length_a=2.9)
    fell = DifferenceRecord(**row, accept_length_b=2.2, low=-0.9, high=-0.5, p_value=0.008)
    same = DifferenceRecord(**row, accept_length_b=2.9, low=-0.1, high=0.1, p_value=1.0)
    open_ = DifferenceRecord(**row, accept_length_b=2.6, low=-1.2, high=0.6, p_value=0.3)
    small = DifferenceRecord(**row, accept_length_b=2.81, low=-0.15, high=-0.02, p_value=0.004)
    found = [states(Evidence(differences=(d,))).get("falls_when_cached") for d in (fell, same, open_, small)]
    assert found == [True, False, None, True]
    hotter = DifferenceRecord(
        source="wiring ab",
        by="temperature",
        a=0.0,
        b=1.0,
        accept_length_a=2.9,
        accept_length_b=2.6,
        low=-0.4,
        high=-0.1,
        p_value=0.001,
    )
    assert states(Evidence(differences=(hotter,))) == {"falls_with_temperature": False}


def test_impossible_figures_and_contradictions():
    assert states(Evidence(acceptance=(measured(6.5, 10),)))["impossible_figure"] is True
    assert states(Evidence(acceptance=(measured(0.5, 10),)))["impossible_figure"] is True
    assert states(Evidence(acceptance=(measured(None, 10, (0.5, 0.7), 2),)))["impossible_figure"] is True
    # vllm PR 17504 printed the bonus as the first position: 3.57 beside 1.00/.75/.55/.42/.31/.24/.18/.13
    printed = (1.0, 0.75, 0.55, 0.42, 0.31, 0.24, 0.18, 0.13)
    found = Evidence(acceptance=(measured(3.57, None, printed, None),))
    assert states(found)["counts_disagree"] is True
    assert "bonus" in next(s.text for s in symptoms_of(found) if s.name == "counts_disagree")
    # vLLM's own line: 2.95 and 0.823, 0.638, 0.486
    assert states(Evidence(acceptance=(measured(2.95, 395, (0.823, 0.638, 0.486), 3),)))["counts_disagree"] is False


def test_slots_tell_shift_transform_ranks_and_drift():
    def slot(k, boundary, **more):
        return SlotRecord(source="dump", phase="verify", slot=k, wanted=(0, 3, 31)[k], boundary=boundary, **more)

    right = states(Evidence(slots=tuple(slot(k, b, cosine=1.0, norm_ratio=1.0) for k, b in enumerate((0, 3, 31)))))
    assert right and not any(right.values())
    shifted = states(Evidence(slots=tuple(slot(k, b, shift=1) for k, b in enumerate((0, 3, 31)))))
    assert shifted["tokens_shifted"] is True and shifted["other_boundaries_served"] is False
    normed = states(Evidence(slots=tuple(slot(k, b, transform="normed") for k, b in enumerate((0, 3, 31)))))
    assert normed["state_transformed"] is True
    split = states(Evidence(slots=(slot(0, 0, ranks_agree=True), slot(1, 3, ranks_agree=False))))
    assert split["ranks_differ"] is True
    drift = states(Evidence(slots=tuple(slot(k, None, cosine_wanted=c) for k, c in enumerate((0.999, 0.95, 0.7)))))
    assert drift["drift_with_depth"] is True
    rotated = states(Evidence(slots=(slot(1, None, cosine_wanted=0.02, norm_ratio_wanted=1.0),)))
    assert rotated["rotated_state"] is True
    part = states(Evidence(slots=(slot(2, None, cosine_wanted=0.17, norm_ratio_wanted=0.01),)))  # without the residual
    assert part["state_transformed"] is True and "rotated_state" not in part
    neighbour = states(Evidence(slots=(slot(1, 4, cosine_wanted=0.97, norm_ratio_wanted=1.3),)))
    assert neighbour["boundaries_off_by_one"] is True and "norm_ratio_off" not in neighbour


def test_a_round_is_dear_beyond_what_its_drafts_account_for():
    # reference/case-study.md: 1.8 tokens a round at 54.8 tok/s, 11.1 ms a step: 2.96 plain steps
    def speeds(rate):
        return (
            SpeedRecord(source="p", arm="plain", tok_per_s=90.0),
            SpeedRecord(source="d", arm="draft", tok_per_s=rate),
        )

    found = Evidence(acceptance=(measured(1.8, None),), speed=speeds(54.8))
    assert states(found)["round_dear"] is True
    assert "2.96 plain steps" in next(s.text for s in symptoms_of(found) if s.name == "round_dear")
    assert states(Evidence(acceptance=(measured(1.8, None),), speed=speeds(120.0)))["round_dear"] is False


def test_arguments_layer_ids_and_aliases():
    def argument(name, asked, resolved):
        return states(Evidence(arguments=(ArgumentRecord(source="server", name=name, asked=asked, resolved=resolved),)))

    assert argument("speculative_num_draft_tokens", 8, 6) == {"arguments_changed": True}
    assert argument("speculative_num_draft_tokens", 6, 6) == {"arguments_changed": False}
    assert argument("attention_backend", None, "triton") == {}
    assert argument("speculative_algorithm", "NEXTN", "EAGLE") == {}
    assert argument("eagle_aux_hidden_state_layer_ids", "24,30,36", "2,18,33") == {"layer_ids_ignored": True}
    assert argument("eagle_aux_hidden_state_layer_ids", "2,30,58", "3,31,59") == {}


def test_the_engine_rule_serves_as_evidence_where_configs_are_given():
    # SGLang 0.5.9 serves the default layers in verify under CUDA graphs whatever the config says
    setting = Setting(
        engine="sglang",
        version="0.5.9",
        trained_layout=(3, 31, 59),
        target_config={"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61},
        draft_config={
            "architectures": ["LlamaForCausalLMEagle3"],
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]},
        },
    )
    found = {s.name: s for s in symptoms_of(Evidence(setting=setting))}
    assert found["boundaries_off_by_one"].present and "verify" in found["boundaries_off_by_one"].text
    eager = Evidence(setting=setting.model_copy(update={"cuda_graphs": False}))
    assert states(eager)["boundaries_off_by_one"] is False


def test_a_condition_that_all_records_share_is_the_frame():
    arms = (measured(3.0, 5000, tp=2, cached=False), measured(2.0, 5000, tp=2, cached=True))
    whole = normalise_evidence(Evidence(acceptance=arms))
    assert whole.setting.tp == 2 and [r.condition for r in whole.acceptance] == [{"cached": False}, {"cached": True}]

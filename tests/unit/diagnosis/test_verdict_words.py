"""What a verdict says of acceptance that no fault explains: too high, low but allowed, impossible, assumed."""

import pytest
from evidence_builders import alone, measured

from wiring.diagnosis.verdict import diagnose
from wiring.logs.evidence import AccuracyRecord, Evidence, Setting

CHAIN, TREE = Setting(steps=5, topk=1), Setting(steps=5, topk=4, draft_tokens=16)


def of(length, rounds=3000, setting=CHAIN, **accuracy):
    row = AccuracyRecord(source="served", side="T", accuracy=0.7, rows=50_000, text="served")
    return diagnose(
        Evidence(
            setting=setting,
            accuracy=(row.model_copy(update=accuracy),),
            acceptance=(measured(length, rounds, proposed=None),),
        )
    )


def test_as_predicted():
    """0.7 at every depth: 1 + 0.7 + 0.49 + 0.343 + 0.2401 + 0.16807 = 2.94."""
    verdict = of(2.94)
    assert verdict.healthy and "and acceptance is as the draft alone predicts" in verdict.summary
    assert round(verdict.predictions[0].expected.value, 2) == 2.94


def test_clearly_more_than_predicted_is_not_as_predicted():
    verdict = of(5.5)
    assert not verdict.healthy and not verdict.enough_evidence and verdict.named == ()
    assert "more is accepted than the draft alone predicts: accept length 5.50, expected 2.94" in verdict.summary
    assert "loop" in verdict.summary and "wiring accuracy" in verdict.next_check
    (row,) = verdict.as_json()["expected"]
    assert (row["above"], row["below"]) == (True, False)


@pytest.mark.parametrize("setting", [TREE, Setting(steps=5), Setting(steps=5, draft_tokens=12)])
def test_a_tree_accepts_more_than_its_first_drafts_say(setting):
    """Four drafts for a place: what the curve of the first ones predicts is exceeded as a rule."""
    verdict = of(3.9, setting=setting)
    assert verdict.healthy and "acceptance is no lower than the draft alone predicts" in verdict.summary


def test_a_prediction_of_no_draft_at_all_is_exceeded_too():
    """Accuracy 0 predicts an accept length of 1: there is no share of none."""
    assert "no lower than the draft alone predicts" in of(1.5, setting=TREE, accuracy=0.0).summary


@pytest.mark.parametrize("setting", [CHAIN, Setting(steps=5, draft_tokens=6), Setting(steps=5, engine="vllm")])
def test_a_chain_is_known_by_topk_by_draft_tokens_or_by_an_engine_without_trees(setting):
    assert not of(5.5, setting=setting).healthy


@pytest.mark.parametrize(("length", "claimed", "part"), [(2.70, False, "88%"), (2.55, True, "80%")])
def test_fewer_than_predicted_but_within_what_text_may_take_is_told(length, claimed, part):
    """1.70 of 1.94 drafts, and 1.55 of them: above 85 % on the same text, above 70 % on another."""
    told = "70%" if claimed else "85%"
    verdict = of(length, 50_000, claimed=claimed)
    assert verdict.healthy
    assert f"{part} of the drafts that the draft alone predicts are accepted (down to {told} is" in verdict.summary


@pytest.mark.parametrize("setting", [CHAIN, TREE])
def test_more_than_the_cases_own_steps_allow_is_impossible(setting):
    """5 drafts and the bonus token are 6."""
    assert "impossible_figure" in {s.name for s in of(7.5, setting=setting).symptoms if s.present}
    assert "impossible_figure" not in {s.name for s in of(6.0, setting=setting).symptoms if s.present}


@pytest.mark.parametrize(
    "record",
    [
        measured(4.6, proposed=7, batch=8),
        measured(5.5, proposed=None, engine="vllm", draft_tokens=7),
        measured(5.5, proposed=None, draft_tokens=8),
        measured(3.2, proposed=None, positions=(0.9, 0.7, 0.6)),
    ],
)
def test_what_a_record_says_of_its_own_drafts_goes_before_the_case(record):
    verdict = diagnose(Evidence(setting=Setting(steps=2), acceptance=(measured(2.5, proposed=2), record)))
    assert "impossible_figure" not in {s.name for s in verdict.symptoms if s.present}


def test_an_accept_length_of_1_1_is_hardly_anything():
    """1.1 - 1 is more than 0.1 for a computer."""
    for length in (1.09, 1.1):
        assert "nothing_accepted" in {s.name for s in of(length).symptoms if s.present}
    assert "nothing_accepted" not in {s.name for s in of(1.11).symptoms if s.present}


def test_sampled_rounds_are_not_held_as_strictly_against_most_likely_tokens():
    """1.5 of 1.94 drafts are 77 %: too few at temperature 0, within 70 % at 1."""
    cold, hot = of(2.5, 50_000), of(2.5, 50_000, setting=Setting(steps=5, temperature=1.0))
    assert (cold.predictions[0].below, hot.predictions[0].below) == (True, False)
    (text,) = [s.text for s in hot.symptoms if s.name == "accept_below_training"]
    assert text.endswith("sampled at temperature 1, while accuracy counts most likely tokens")


def test_what_is_left_over_is_said_beside_a_prediction_that_holds():
    """0.3 at every depth: 1 + 0.3 + 0.09 + ... = 1.43 is what is measured; the draft itself is poor."""
    verdict = of(1.43, accuracy=0.3)
    assert "acceptance is as the draft alone predicts. Not explained: the draft alone on served text" in verdict.summary


def test_a_rule_of_no_release_says_so():
    configs = {
        "draft_config": {
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": 8,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 31, 59]},
        },
        "target_config": {"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61},
    }
    for version, told in ((None, True), ("0.5.23", False)):
        setting = Setting(engine="sglang", version=version, trained_layout=(0, 3, 31), **configs)
        verdict = diagnose(Evidence(setting=setting, accuracy=alone(0.7), acceptance=(measured(1.1, 500),)))
        (text,) = {s.text for s in verdict.symptoms if s.name == "other_boundaries_served"}
        assert ("no release given" in text) is told

"""SGLang's log lines and tables, by release; recorded lines and closed forms."""

from pathlib import Path

import pytest
from log_helpers import pooled

from wiring.diagnosis.find_symptoms import normalise_evidence
from wiring.engines.sglang_metrics import rate_rule
from wiring.logs import read_lines, scan
from wiring.logs.evidence import AcceptanceRecord, ArgumentRecord, Evidence, FactRecord, SpeedRecord
from wiring.logs.log_context import fitting_rates

RECORDED = Path(__file__).parent / "recorded" / "sglang-0.5.23-cpu.log"
# SGLang issue 11948 (October 2025): five lines of one server with 3 steps.
OLD = [
    f"Decode batch. #running-req: 1, #token: 108, token usage: 0.00, accept len: {length}, accept rate: {rate}, "
    "cuda graph: True, gen throughput (token/s): 165.20, #queue-req: 0, "
    for length, rate in (("2.17", "0.54"), ("1.95", "0.49"), ("1.80", "0.45"), ("2.05", "0.51"), ("1.57", "0.39"))
]
# SGLang pull request 16974 (January 2026), as quoted there.
JANUARY = [
    "[DP0 TP0] Decode batch, accept len: 1.52, accept rate: 0.51, cuda graph: True",
    "[DP0 TP0] Decode batch, accept len: 2.20, accept rate: 0.73, cuda graph: True",
    "[DP1 TP1] Decode batch, accept len: 2.34, accept rate: 0.78, cuda graph: True",
]
# SGLang issue 28771 (June 2026): half-hour means of accept length and rate on a server with 3 drafts per round.
JUNE = [
    f"Decode batch, #running-req: 9, accept len: {length}, accept rate: {rate}%, cuda graph: True"
    for length, rate in (("3.33", "78"), ("3.07", "69"), ("2.84", "61"), ("2.44", "48"), ("1.90", "30"))
]


def of(kind, records):
    return [record for record in records if isinstance(record, kind)]


def test_recorded_server_log():
    records = read_lines(RECORDED.read_text().splitlines(), source="server", version="0.5.23")
    acceptance, speed = of(AcceptanceRecord, records), of(SpeedRecord, records)
    # read off the file by hand
    assert [a.accept_length for a in acceptance] == [1.40, 1.00, 1.18, 1.00, 1.30, 1.15, 1.30, 1.12]
    assert [s.tok_per_s for s in speed] == [1.93, 3.75, 1.39, 3.58, 1.54, 4.76, 1.71, 5.03]
    assert {s.arm for s in speed} == {"draft"} and not any(a.impossible for a in acceptance)
    assert {a.proposed for a in acceptance} == {5} and {a.rounds for a in acceptance} == {None}
    first = acceptance[0]
    assert first.source == "server, line 6" and "drafts only / (rounds x (draft tokens - 1))" in first.rule
    assert first.condition["batch"] == 1 and first.condition["cuda_graphs"] is False
    setting = scan(RECORDED.read_text().splitlines()).setting
    assert (setting.engine, setting.steps, setting.topk, setting.draft_tokens, setting.tp) == ("sglang", 5, 1, 6, 1)
    facts = {fact.name: fact.value for fact in of(FactRecord, records)}
    assert facts == {
        "draft_architecture": "LlamaForCausalLMEagle3",
        "load_quantisation": "none",
        "spec_algorithm": "EAGLE3",
    }
    (changed,) = of(ArgumentRecord, records)
    assert changed.name == "speculative_num_draft_tokens" and changed.resolved == 6
    assert pooled(acceptance).accept_length == pytest.approx(9.45 / 8)


def test_the_recorded_rates_alone_tell_release_and_drafts():
    lines = [line for line in RECORDED.read_text().splitlines() if "Decode batch" in line]
    assert scan(lines).rate_meaning == (False, 5)


def test_a_plain_server_gives_speed_alone():
    line = (
        "[2026-11-30 03:24:32] Decode batch, #running-req: 1, #token: 86, token usage: 0.01, cpu graph: False, "
        "gen throughput (token/s): 0.72, #queue-req: 0"
    )
    (speed,) = read_lines([line])
    assert (speed.arm, speed.tok_per_s) == ("plain", 0.72)


def test_rate_of_2025_has_the_bonus_token_in_it():
    # 2.17 / 4 = 0.5425: printed 0.54. Drafts only would be 1.17 / 3 = 0.39.
    assert fitting_rates(2.17, 0.54) == {(True, 4)}
    records = of(AcceptanceRecord, read_lines(OLD))
    assert [a.accept_length for a in records] == [2.17, 1.95, 1.80, 2.05, 1.57]
    assert {a.proposed for a in records} == {3} and not any(a.impossible for a in records)
    assert all("bonus token" in a.rule and "inferred from the figures" in a.rule for a in records)


def test_rate_of_january_2026_still_has_it():
    assert scan(JANUARY).rate_meaning == (True, 3)
    assert [a.proposed for a in of(AcceptanceRecord, read_lines(JANUARY))] == [2, 2, 2]


def test_rate_of_june_2026_counts_drafts_only():
    # (3.33 - 1) / 3 = 78 %, (1.90 - 1) / 3 = 30 %
    assert {(False, 3)} == fitting_rates(3.33, 0.78) & fitting_rates(1.90, 0.30)
    records = of(AcceptanceRecord, read_lines(JUNE))
    assert [a.accept_length for a in records] == [3.33, 3.07, 2.84, 2.44, 1.90]
    assert {a.proposed for a in records} == {3} and not any(a.impossible for a in records)


def test_an_undecided_rate_is_not_used_and_said_so():
    line = "Decode batch, #running-req: 1, accept len: 2.00, accept rate: 0.50, cuda graph: True"  # (T, 4) or (F, 2)
    assert fitting_rates(2.00, 0.50) == {(True, 4), (False, 2)}
    (found,) = read_lines([line])
    assert found.accept_length == 2.00 and found.proposed is None and "fit both meanings" in found.rule
    (found,) = read_lines([line], version="0.5.9")
    assert found.proposed == 3 and not found.impossible
    (found,) = read_lines([line], version="0.5.23")
    assert found.proposed == 2 and not found.impossible


def test_a_rate_alone_needs_the_release():
    line = "Decode batch, #running-req: 1, accept rate: 0.50, cuda graph: True"
    (unknown,) = read_lines([line], draft_tokens=4)
    assert unknown.accept_length is None and "fit both meanings" in unknown.rule
    (old,) = read_lines([line], draft_tokens=4, version="0.5.9")
    (new,) = read_lines([line], draft_tokens=4, version="0.5.23")
    assert (old.accept_length, new.accept_length) == (2.0, 2.5)


def test_a_rate_that_fits_neither_meaning_is_told_with_both_sums():
    # 2.31 / 6 = 0.385 with the bonus token, 1.31 / 5 = 0.262 without: printed 0.46, which is 2.31 / 5 = 0.462.
    line = "Decode batch, #running-req: 1, accept len: 2.31, accept rate: 0.46, cuda graph: True"
    (found,) = read_lines([line], steps=5, topk=1, draft_tokens=6)
    assert "2.31 / 6 = 0.385" in found.impossible and "(2.31 - 1) / 5 = 0.262" in found.impossible
    assert "ran 5 draft tokens" in found.impossible and "both" not in found.rule + found.impossible
    (found,) = read_lines([line])  # nothing known that it could contradict
    assert not found.impossible


def test_arguments_that_cannot_be_are_no_arguments():
    line = "Decode batch, #running-req: 1, accept len: 2.31, accept rate: 0.46, cuda graph: True"
    flags = "--tp 0 --speculative-num-steps -1 --speculative-eagle-topk -2 --speculative-num-draft-tokens 0"
    lines = [f"python -m sglang.launch_server {flags}", line]
    assert not of(AcceptanceRecord, read_lines(lines))[0].impossible
    setting = scan(lines).setting
    assert (setting.tp, setting.steps, setting.topk) == (None, None, None)
    assert not read_lines([line], steps=0, topk=1)[0].impossible  # a server without drafts: nothing to divide by


def test_steps_plus_one_of_a_tree_is_a_denominator_too():
    # 0.5.3.post3 to 0.5.5.post2 divide by steps + 1 in a tree of 8 draft tokens as well: 2.31 / 6 = 0.385
    line = "Decode batch, #running-req: 1, accept len: 2.31, accept rate: 0.39, cuda graph: True"
    (found,) = read_lines([line], steps=5, topk=4, draft_tokens=8)
    assert not found.impossible and "bonus token in it" in found.rule


# A tree of 5 steps, top-k 4 and 8 draft tokens, 0.5.9: 2.31 / 8 = 0.289, 2.55 / 8 = 0.319, 1.90 / 8 = 0.238.
TREE = [
    f"Decode batch, #running-req: 1, accept len: {length}, accept rate: {rate}, cuda graph: True"
    for length, rate in (("2.31", "0.29"), ("2.55", "0.32"), ("1.90", "0.24"))
]


def test_a_rate_tells_draft_tokens_which_are_a_chains_depth_alone():
    for found in read_lines(TREE):
        assert found.proposed == 7 and "K 7 assumes a chain" in found.rule
    for given in ({"steps": 5, "topk": 4}, {"steps": 5, "topk": 4, "draft_tokens": 8}, {"steps": 5}):
        assert {found.proposed for found in read_lines(TREE, version="0.5.9", **given)} == {5}
    for found in read_lines(TREE, topk=4):  # a tree of unknown depth
        assert found.proposed is None and "chain" not in found.rule
    for found in read_lines(TREE, topk=1):
        assert found.proposed == 7 and "assumes a chain" not in found.rule


def test_a_case_that_says_its_steps_is_believed_before_what_a_rate_gave():
    given = {"source": "read-log", "accept_length": 2.25, "proposed": 7}

    def proposed(record, **setting):
        (found,) = normalise_evidence(Evidence(acceptance=[record], setting=setting)).acceptance
        return found.proposed

    assert proposed(given, steps=5, topk=4) == 5
    assert proposed(given, steps=5) == 7  # nobody says that it is a tree
    assert proposed(given) == proposed(given, topk=4) == proposed(given, steps=9, topk=4) == 7
    assert proposed(given, steps=5, topk=1) == 7  # a chain: the two contradict, and neither is taken for the other
    assert proposed({**given, "condition": {"steps": 7}}, steps=5, topk=4) == 7  # an arm of its own


@pytest.mark.parametrize("version", [None, "0.5.9"])
def test_steps_alone_make_a_chain_or_a_tree(version):
    """3.40 / 16 = 0.2125: 16 draft tokens, which are no chain of 5 steps; nobody said that it is one."""
    line = "Decode batch. #running-req: 1, #token: 9, accept len: 3.40, accept rate: 0.21, cuda graph: True"
    (found,) = of(AcceptanceRecord, read_lines([line], steps=5, version=version))
    assert not found.impossible and found.accept_length == 3.4
    (chain,) = of(AcceptanceRecord, read_lines([line], steps=5, topk=1, version=version))
    assert "16" in chain.impossible


def test_why_a_rate_is_not_used_where_steps_alone_are_known():
    """6.00 / 6 = (6.00 - 1) / 5 = 1.00 fits both meanings; 3.40 beside 0.21 fits no chain of 5 steps."""
    line = "Decode batch. #running-req: 1, #token: 9, accept len: {}, accept rate: {}, cuda graph: True"
    for figures, why in ((("6.00", "1.00"), "fit both meanings"), (("3.40", "0.21"), "fits no chain of these steps")):
        (found,) = of(AcceptanceRecord, read_lines([line.format(*figures)], steps=5))
        assert why in found.rule


def test_a_rate_of_another_release_is_named():
    (found,) = of(AcceptanceRecord, read_lines(OLD[:1], version="0.5.23", steps=3, topk=1))
    assert "0.54" in found.impossible and "bonus token" in found.impossible and "release is another" in found.impossible
    assert found.accept_length == 2.17  # has the same meaning in both


def test_a_rate_above_1_is_explained_by_the_bonus_token():
    # Before pull request 11572 the rate was (accepted + bonus) / (rounds x steps): 3.6 / 3 = 1.20.
    line = "Decode batch. #running-req: 1, accept len: 3.60, accept rate: 1.20, cuda graph: True"
    (found,) = read_lines([line], steps=3, topk=1)
    assert "above 1" in found.impossible and "bonus token is in the numerator" in found.impossible
    assert "accept length 3.60" in found.impossible


def test_an_accept_length_above_steps_plus_1_is_refused():
    line = "Decode batch, #running-req: 1, accept len: 4.80, cuda graph: True"
    (found,) = read_lines([line], steps=3, topk=1)
    assert found.accept_length is None and "above drafts per round + 1 = 4" in found.impossible


@pytest.mark.parametrize(
    "line",
    [
        "[2025-05-01 10:00:00 TP0] Decode batch. #running-req: 1, #token: 9, token usage: 0.00, accept len: 1.50, "
        "gen throughput (token/s): 9.50, #queue-req: 0",  # 0.4.6
        "[2025-11-01 10:00:00] Decode batch [80], #running-req: 1, #token: 9, token usage: 0.00, accept len: 1.50, "
        "accept rate: 0.38, cuda graph: True, gen throughput (token/s): 9.50, #queue-req: 0, ",  # 0.5.4
        "[2026-07-01 10:00:00] Decode batch, #running-req: 1, #full token: 9, full token usage: 0.00, mamba num: 1, "
        "mamba usage: 0.10, accept len: 1.50, accept rate: 0.17, cap len: 3.10, block accept len: 2.20, "
        "npu graph: True, gen throughput (token/s): 9.50, #queue-req: 0, fwd occupancy: 80.00%",  # 0.5.16
        "\x1b[32mLoading: 100%\x1b[0m\r[2026-07-01] Decode batch, #running-req: 1, accept len: 1.50, "
        "gen throughput (token/s): 9.50",
    ],
)
def test_every_release_writes_its_own_line(line):
    records = read_lines([line])
    (found,), (speed,) = of(AcceptanceRecord, records), of(SpeedRecord, records)
    assert found.accept_length == 1.50 and speed.tok_per_s == 9.50 and found.condition["batch"] == 1


def test_load_lines_tell_the_drafts_quantisation():
    # SGLang pull request 34622: the draft inherits the target's quantisation.
    line = "Load weight end. elapsed=4.86 s, type=Qwen3_5ForCausalLMMTP, quant=gptq, bits=4, avail mem=9.00 GB"
    facts = {fact.name: fact.value for fact in of(FactRecord, read_lines([line]))}
    assert facts == {"draft_architecture": "Qwen3_5ForCausalLMMTP", "load_quantisation": "gptq"}
    old = "Load weight end. type=LlamaForCausalLMEagle, dtype=torch.float16, avail mem=9.00 GB, mem usage=1.00 GB."
    assert [fact.name for fact in of(FactRecord, read_lines([old]))] == [
        "draft_architecture"
    ]  # this release does not say


def test_a_launch_command_is_held_against_the_rule():
    # SpecForge issue 310: 24 draft tokens asked for with top-k 1 and 4 steps, so the server verifies 5.
    command = [
        "python -m sglang.launch_server \\",
        "  --speculative-algorithm EAGLE3 \\",
        "  --speculative-num-steps 4 \\",
        "  --speculative-eagle-topk 1 \\",
        "  --speculative-num-draft-tokens 24 \\",
        "  --tp 1",
        "Average Latency: 92.421 s",
    ]
    records = read_lines(command)
    (changed,) = of(ArgumentRecord, records)
    assert (changed.name, changed.asked, changed.resolved) == ("speculative_num_draft_tokens", 24, 5)
    assert [fact.value for fact in of(FactRecord, records)] == ["EAGLE3"]


def test_send_one_loses_its_prefill_token():
    # SGLang pull request 15307: 1024 tokens, 2.960: only 346 rounds print that; 1 + (1024 - 1 - 346) / 346 = 2.957.
    table = [
        "+-------------+--------+------------+-----------------+",
        "| Latency (s) | Tokens | Acc Length | Speed (token/s) |",
        "+-------------+--------+------------+-----------------+",
        "|    7.922    |  1024  |   2.960    |     129.26      |",
    ]
    found, speed = read_lines(table)
    assert found.rounds == 346 and found.accept_length == pytest.approx(1023 / 346) and not found.impossible
    assert speed.tok_per_s == 129.26


def test_send_one_on_a_plain_server():
    table = ["| Latency (s) | Tokens | Acc Length | Speed (token/s) |", "|  5.0  |  512  |  1.000  |  102.40  |"]
    (speed,) = read_lines(table)
    assert speed.arm == "plain"


def test_bench_sglang_eagle_and_bench_serving():
    line = "#questions: 80, Throughput: 378.57 token/s, Acceptance length: 5.39"
    found, speed = read_lines([line])
    assert (found.accept_length, speed.tok_per_s) == (5.39, 378.57) and "prefill token of each answer" in found.rule
    (found, *_) = read_lines([line], steps=3, topk=1)
    assert found.accept_length is None and "above drafts per round + 1 = 4" in found.impossible
    serving = [
        "Output token throughput (tok/s):         712.30    ",
        "Accept length:                           2.34      ",
    ]
    found, speed = read_lines(serving)
    assert (found.accept_length, speed.tok_per_s) == (2.34, 712.30)


def test_hours_are_told_where_a_log_spans_them():
    lines = [
        f"[2026-06-17 {at}] Decode batch, #running-req: 4, accept len: {length}, cuda graph: True"
        for at, length in (("14:49:00", "3.33"), ("16:49:00", "1.90"))
    ]
    assert [a.condition["hours"] for a in of(AcceptanceRecord, read_lines(lines))] == [0.0, 2.0]
    assert "hours" not in of(AcceptanceRecord, read_lines(lines[:1]))[0].condition


@pytest.mark.parametrize(
    ("version", "bonus", "per"),
    [
        ("0.5.4", True, 4),
        ("0.5.5.post3", True, 4),
        ("0.5.10.post1", True, 4),
        ("0.5.11", False, 3),
        ("0.5.23", False, 3),
    ],
)
def test_rate_rules_by_release(version, bonus, per):
    rule = rate_rule(version)
    assert (rule.bonus, rule.per_round(3, 4)) == (bonus, per)


def test_no_rate_before_its_first_release():
    assert rate_rule("0.5.3") is None and rate_rule(None) is None


def test_nan_in_the_logits_is_a_fact():
    (fact,) = read_lines(["Detected errors during sampling! NaN in the logits."])
    assert (fact.name, fact.value) == ("nonfinite_logits", True)

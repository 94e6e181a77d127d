"""Public reports as evidence, with the figures that they give: the stated cause is found, or the check that finds it.

Each file's `name` is its reading in one line.
"""

from pathlib import Path

import pytest

from wiring.diagnosis.evidence_file import read_evidence
from wiring.diagnosis.verdict import diagnose

REPORTS = Path(__file__).parent / "reports"

# file: the stated cause, which the figures decide
DECIDED = {
    "vllm-50170": 1,
    "tokenspeed-526": 1,
    "llama-cpp-27040": 1,
    "speculators-1065": 3,
    "sglang-27540": 6,
    "torchspec-38": 8,
    "vllm-50158": 8,
    "automodel-2447": 9,
    "speco-66": 9,
    "specforge-534": 9,
    "sglang-34622": 11,
    "vllm-49133": 11,
    "vllm-24505": 12,
    "speculators-684": 13,
    "sglang-10846": 15,
    "sglang-28771": 15,
    "sglang-13590": 16,
    "sglang-4724": 19,
    "sglang-14063": 19,
    "sglang-54": 21,
    "mlx-lm-1085": 20,
    "sglang-15307": 24,
    "vllm-44697": 24,
    "vllm-ascend-16638": 24,
    "specforge-885": 23,
    "specforge-392": 23,
    "eagle-286": 23,
    "specforge-296": 22,
    "glm-5-1-eagle3": 22,
    "eagle-98": 22,
    "eagle-196": 22,
    "inferencex-1737": 25,
    "tokenspeed-1132": 25,
    "vllm-52536": 25,
}

# file: faults that its figures leave open, the stated cause first; and checks that tell it from the others
OPEN = {
    "tokenspeed-526-figures": ({1, 7, 9}, {"lint"}),  # stated: the capture set is hard-coded
    "vllm-ascend-7038": ({6, 8}, {"lint"}),  # stated: rotated weights, embedding shared
    "specforge-300": ({1, 9}, {"lint"}),  # not stated; layer ids or map
    "xserv": ({10, 13, 14}, {"lint"}),  # stated: residual, KV, norm and position
    "imp-175": ({10, 17}, {"lint"}),  # stated: the chained step
    "vllm-9534": ({6, 19}, {"target unquantised", "capture", "backend", "lint", "text"}),  # not stated
    "specforge-310": ({13}, {"lint"}),  # stated: positions of images, partly
    "vllm-27077": ({20, 25}, {"counters", "temperature 0"}),  # stated: a sentinel of greedy sampling
    "xinfer": ({25}, {"counters", "benchmark"}),  # inferred: one was added twice
    "eagle-179": ({22}, {"lint", "counters"}),  # stated: distribution; lint and counters leave the served text
    "baldeagle-17": ({1, 22}, {"lint", "served text", "rendered prompts", "capture"}),  # not stated
    "specforge-128": ({22, 23}, {"lint", "alone"}),  # stated: too little data
}


def test_every_file_is_asserted_and_enough_reports_are():
    files = {path.stem for path in REPORTS.glob("*.json")}
    assert files == {*DECIDED, *OPEN, "vllm-log-line"}
    assert len(files) >= 30


@pytest.mark.parametrize("name", sorted({*DECIDED, *OPEN}))
def test_a_report_says_where_it_comes_from_and_how_it_reads(name):
    evidence = read_evidence(REPORTS / f"{name}.json")
    assert evidence.name.endswith(".") and len(evidence.name) > 40
    sources = [
        record.source
        for part in ("lint", "arguments", "accuracy", "slots", "acceptance", "speed", "facts")
        for record in getattr(evidence, part)
    ]
    assert evidence.setting.served_layout or all("/" in s or " " in s for s in sources) and sources


@pytest.mark.parametrize("name", sorted(DECIDED))
def test_the_stated_cause_is_first(name):
    verdict = diagnose(read_evidence(REPORTS / f"{name}.json"))
    assert verdict.ranking[0].fault == DECIDED[name], verdict.summary
    assert DECIDED[name] in verdict.named, verdict.summary


@pytest.mark.parametrize("name", sorted(OPEN))
def test_open_causes_are_among_the_candidates_with_a_check_that_tells_them_apart(name):
    verdict = diagnose(read_evidence(REPORTS / f"{name}.json"))
    faults, checks = OPEN[name]
    assert faults <= set(verdict.candidates) | set(verdict.named), verdict.summary
    assert verdict.check.name in checks, verdict.next_check


def test_a_healthy_log_line_names_nothing_and_asks_for_more():
    verdict = diagnose(read_evidence(REPORTS / "vllm-log-line.json"))
    assert verdict.named == () and not verdict.enough_evidence and verdict.check is not None

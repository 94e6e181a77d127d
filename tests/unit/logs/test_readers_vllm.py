"""vLLM's lines and blocks, as they stand in public threads."""

import pytest
from log_helpers import pooled

from wiring.logs import read_lines, scan
from wiring.logs.evidence import AcceptanceRecord, FactRecord, SpeedRecord

STANDARD = (
    "INFO 09-13 10:00:10 [metrics.py:99] SpecDecoding metrics: Mean acceptance length: 2.95, "
    "Accepted throughput: 38.45 tokens/s, Drafted throughput: 59.25 tokens/s, Accepted: 769 tokens, "
    "Drafted: 1185 tokens, "
    "Per-position acceptance rate: 0.823, 0.638, 0.486, Avg Draft acceptance rate: 64.9%"
)
EARLY = (  # order of 0.8 and 0.9
    "SpecDecoding metrics: Draft acceptance rate: 64.9%, Mean acceptance length: 2.95, Accepted: 769 tokens, Drafted: "
    "1185 tokens, Per-position acceptance rate: 0.823, 0.638, 0.486"
)


@pytest.mark.parametrize("line", [STANDARD, EARLY])
def test_the_interval_line(line):
    # 1185 drafted tokens of 3 positions are 395 rounds; 1 + 769 / 395 = 2.947.
    (found,) = read_lines([line])
    assert (found.rounds, found.proposed) == (395, 3)
    assert found.accept_length == pytest.approx(1 + 769 / 395) and not found.impossible
    assert found.by_position == (0.823, 0.638, 0.486)


@pytest.mark.parametrize(
    ("accepted", "drafted", "length", "shares", "rounds"),
    [
        (92, 259, "3.49", "0.757, 0.622, 0.432, 0.324, 0.189, 0.108, 0.054", 37),
        (231, 259, "7.24", "1.000, 1.000, 0.973, 0.973, 0.892, 0.784, 0.622", 37),
        (337, 498, "3.03", "0.837, 0.669, 0.524", 166),
        (282, 453, "2.87", "0.821, 0.609, 0.437", 151),
        (31, 66, "1.47", "0.470", 66),
    ],
)
def test_rounds_are_told_from_the_figures(accepted, drafted, length, shares, rounds):
    line = (
        f"SpecDecoding metrics: Mean acceptance length: {length}, Accepted: {accepted} tokens, Drafted: {drafted} "
        f"tokens, Per-position acceptance rate: {shares}, Avg Draft acceptance rate: {accepted / drafted:.1%}"
    )
    (found,) = read_lines([line])
    assert found.rounds == rounds and not found.impossible


def test_intervals_pool_by_their_rounds():
    nothing = STANDARD.replace("769", "0").replace("2.95", "1.00").replace("0.823, 0.638, 0.486", "0.000, 0.000, 0.000")
    found = pooled(read_lines([STANDARD, nothing]))
    assert found.rounds == 790 and found.accept_length == pytest.approx(1 + 769 / 790)


def test_a_wrapped_line_is_put_together():
    wrapped = [
        "SpecDecoding metrics: Mean acceptance length: 2.77,",
        "Accepted: 626 tokens, Drafted: 1062 tokens,",
        "Per-position acceptance rate: 0.802, 0.551, 0.415,",
        "Avg Draft acceptance rate: 58.9%",
    ]
    (found,) = read_lines(wrapped)
    assert found.rounds == 354 and found.accept_length == pytest.approx(1 + 626 / 354)


def test_an_interval_without_drafts_says_nothing():
    line = (
        "SpecDecoding metrics: Mean acceptance length: nan, Accepted throughput: 0.00 tokens/s, Drafted "
        "throughput: 0.00 tokens/s, Accepted: 0 tokens, Drafted: 0 tokens, Per-position acceptance rate: nan, nan, "
        "Avg Draft acceptance rate: nan%"
    )
    assert read_lines([line]) == ()


def test_speed_needs_to_know_whether_there_is_a_draft():
    engine = (
        "INFO 09-13 10:00:10 [loggers.py:310] Engine 000: Avg prompt throughput: 93.9 tokens/s, Avg generation "
        "throughput: 13.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%"
    )
    start = (
        "INFO [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='m', speculative_config={}, "
        "tokenizer='m'"
    )
    assert read_lines([engine]) == ()
    (plain,) = read_lines([start.format("None"), engine])
    assert (plain.arm, plain.tok_per_s) == ("plain", 13.0) and scan([start]).version == "0.11.0"
    config = "SpeculativeConfig(method='eagle3', model='d', num_spec_tokens=3)"
    speed, found = read_lines([start.format(config), engine, STANDARD])
    assert isinstance(speed, SpeedRecord) and speed.arm == "draft"
    assert found.condition == {"batch": 1} and found.proposed == 3


def offline(rounds, drafted, accepted, length, shares, form="acceptance at token {}: {}"):
    lines = [
        "-" * 50,
        "total_num_output_tokens: 16990",
        f"num_drafts: {rounds}",
        f"num_draft_tokens: {drafted}",
        f"num_accepted_tokens: {accepted}",
        f"mean acceptance length: {length}",
        "-" * 50,
    ]
    return lines + [form.format(at, share) for at, share in enumerate(shares)]


def test_the_offline_block():
    # vLLM pull request 28549.
    (found,) = read_lines(offline(105426, 316278, 136330, "2.29", ("0.65", "0.40", "0.24")))
    assert (found.rounds, found.proposed, found.impossible) == (105426, 3, "")
    assert found.accept_length == pytest.approx(1 + 136330 / 105426) and found.by_position == (0.65, 0.40, 0.24)


def test_two_offline_blocks_are_two_records():
    lines = offline(105426, 316278, 136330, "2.29", ("0.65", "0.40", "0.24"))
    lines += offline(4816, 33712, 12208, "3.53", ("0.72", "0.53", "0.40", "0.31", "0.23", "0.19", "0.15"))
    first, second = read_lines(lines)
    assert (first.rounds, second.rounds) == (105426, 4816) and second.proposed == 7
    assert second.accept_length == 1 + 12208 / 4816


def test_the_offline_block_that_begins_with_the_bonus_token():
    # vLLM pull request 17504, with tabs and without spaces as the script printed then.
    lines = ["mean acceptance length:         3.57", "-" * 50]
    lines += [
        f"acceptance at token {at}:{share}"
        for at, share in enumerate(("1.00", "0.75", "0.55", "0.42", "0.31", "0.24", "0.18", "0.13"))
    ]
    (found,) = read_lines(lines)
    assert found.by_position == (0.75, 0.55, 0.42, 0.31, 0.24, 0.18, 0.13)
    assert "position 0 is the bonus token" in found.impossible


def test_the_block_of_bench_serve():
    lines = """
---------------Speculative Decoding---------------
Acceptance rate (%):                     33.29
Acceptance length:                       2.33
Drafts:                                  41650
Draft tokens:                            166600
Accepted tokens:                         55458
Per-position acceptance (%):
  Position 0:                            60.24
  Position 1:                            33.78
  Position 2:                            22.27
  Position 3:                            16.86
==================================================
""".splitlines()
    (found,) = read_lines(lines)
    assert (found.rounds, found.proposed, found.impossible) == (41650, 4, "")
    assert found.by_position == pytest.approx((0.6024, 0.3378, 0.2227, 0.1686))


def test_v0_counts_from_the_start_and_its_rate_is_left():
    line = (
        "Speculative metrics: Draft acceptance rate: {}, System efficiency: {}, Number of speculative tokens: 4, "
        "Number of accepted tokens: {}, Number of draft tokens: {}, Number of emitted tokens: {}."
    )
    lines = [line.format("0.500", "0.400", 20, 40, 20), line.format("0.600", "0.480", 240, 400, 240)]
    (found,) = read_lines(lines)
    assert (found.rounds, found.accept_length, found.proposed) == (100, 2.4, 4)  # 0.48 of 5 = 2.4


KEPT = (
    "Detected EAGLE model with distinct embed_tokens weights. Keeping separate embedding weights from the target model."
)
SHARED = (
    "Detected EAGLE model with embed_tokens identical to the target model. Sharing target model embedding "
    "weights with the draft model."
)


@pytest.mark.parametrize(
    ("lines", "facts"),
    [
        ([KEPT], {"embedding_equals_target": False}),
        ([SHARED, SHARED], {"embedding_equals_target": True}),
        ([KEPT, SHARED], {"embedding_equals_target": False, "embedding_ranks_agree": False}),  # vLLM issue 50158
    ],
)
def test_sharing_lines(lines, facts):
    found = read_lines(lines)
    assert {fact.name: fact.value for fact in found if isinstance(fact, FactRecord)} == facts
    assert not any(isinstance(record, AcceptanceRecord) for record in found)

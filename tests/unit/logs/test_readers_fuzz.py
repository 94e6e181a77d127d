"""Real lines with corrupted numbers: nothing raises, and nothing impossible passes for a measurement."""

import re
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from log_helpers import pooled

from wiring.diagnosis.find_symptoms import normalise_evidence
from wiring.logs import read_lines, scan, understood
from wiring.logs.evidence import AcceptanceRecord, AccuracyRecord, ArgumentRecord, Evidence

DECODE = [
    line
    for line in (Path(__file__).parent / "recorded" / "sglang-0.5.23-cpu.log").read_text().splitlines()
    if "server_args" not in line
]
LINES = [
    *DECODE[-3:],
    "Decode batch. #running-req: 1, #token: 108, token usage: 0.00, accept len: 2.17, accept rate: 0.54, "
    "cuda graph: True",
    "SpecDecoding metrics: Mean acceptance length: 2.95, Accepted: 769 tokens, Drafted: 1185 tokens, Per-position "
    "acceptance rate: 0.823, 0.638, 0.486, Avg Draft acceptance rate: 64.9%",
    "num_drafts: 4816",
    "num_draft_tokens: 33712",
    "num_accepted_tokens: 12208",
    "mean acceptance length: 3.53",
    "acceptance at token 0: 0.72",
    "acceptance at token 1: 0.53",
    "Speculative metrics: Number of speculative tokens: 4, Number of draft tokens: 400, Number of emitted tokens: 240.",
    "draft acceptance = 0.64479 (  167 accepted /   259 generated), mean acceptance length =  2.92, "
    "acceptance rate per position = (0.805, 0.632, 0.483)",
    "statistics draft-mtp: #calls(b,g,a) = 1 4 4, #gen drafts = 4, #acc drafts = 2, #gen tokens = 8, #acc tokens = 3",
    "[AL] AVERAGE: 1.86",
    "[DT] AVERAGE: 303.00",
    "[ADT] AVERAGE: 86.00",
    "Average Acceptance Length {'accept': 2310, 'count': 1000, 'ratio': 2.31}",
    "Acceptance Length Histogram",
    "{1: 40, 2: 30, 3: 20, 4: 10}",
    "MTP Stats: proposed=1536, accepted=658, acceptance_rate=42.84%, avg_tokens/step=2.86",
    "| Latency (s) | Tokens | Acc Length | Speed (token/s) |",
    "|    7.922    |  1024  |   2.960    |     129.26      |",
    "#questions: 80, Throughput: 378.57 token/s, Acceptance length: 5.39",
    "Accept length:                           2.34",
]
NUMBERS = st.one_of(
    st.integers(-5, 2_000).map(str),
    st.floats(-2, 12, allow_nan=False).map(lambda x: f"{x:.2f}"),
    st.floats(0, 1).map(lambda x: f"{x:.3f}"),
    st.sampled_from(["nan", "inf", "-inf", "", "1.2.3", "99999999999999999999", "0", "0.00", "1e9"]),
)


@st.composite
def corrupted(draw):
    """Some of the lines in any order, with some of their numbers replaced."""
    lines = draw(st.lists(st.sampled_from(LINES), min_size=1, max_size=6))
    return [
        re.sub(r"\d+(?:\.\d+)?", lambda found: draw(NUMBERS) if draw(st.booleans()) else found[0], line)
        for line in lines
    ]


@settings(max_examples=400, deadline=None)
@given(
    corrupted(),
    st.sampled_from([None, 1, 3, 7]),
    st.sampled_from([None, 1, 4]),
    st.sampled_from([None, "0.5.9", "0.5.23"]),
    st.sampled_from([None, 0, 4, 8]),
)
def test_corrupted_lines_neither_raise_nor_pass_for_figures(lines, steps, topk, version, draft_tokens):
    given = {"steps": steps, "topk": topk, "version": version, "draft_tokens": draft_tokens}
    records = read_lines(lines, **given)
    known = list(understood(lines, scan(lines, **given)))
    said = [record for record in records if not isinstance(record, ArgumentRecord)]  # those tell of what was given
    assert len(known) == len(lines) and (any(known) or not said)
    acceptance = [record for record in records if isinstance(record, AcceptanceRecord)]
    for one in acceptance:
        if one.accept_length is not None:
            assert 1 - 0.01 <= one.accept_length <= (one.proposed or 10**20) + 1.01
        assert all(after <= before + 0.002 for before, after in pairwise(one.by_position))
        assert one.rounds is None or one.rounds >= 0
    if acceptance:
        pooled(acceptance)


def test_every_kind_of_record_has_its_place_in_evidence():
    training = "epoch=0 step=42 train_loss=5.543119 train_acc=0.104492 train_tau_sim=1.2137 lr=8.934e-05"
    whole = normalise_evidence(Evidence(log=(training, DECODE[-1])))
    assert isinstance(whole.accuracy[0], AccuracyRecord) and len(whole.acceptance) == 1


def test_a_figure_printed_as_nan_tells_no_rounds():
    """Both were found by the test above."""
    lines = [
        "draft acceptance = 0.64479 (  167 accepted /   259 generated), mean acceptance length =  nan, "
        "acceptance rate per position = (0.805, 0.632, 0.483)",
        "SpecDecoding metrics: Mean acceptance length: 2.95, Accepted: 769 tokens, Drafted: 1185 tokens, Per-position "
        "acceptance rate: 0.823, 0.638, nan, Avg Draft acceptance rate: 64.9%",
    ]
    for line in lines:
        acceptances = [record for record in read_lines([line]) if isinstance(record, AcceptanceRecord)]
        assert acceptances and all(record.rounds is None for record in acceptances)
        assert any(record.impossible for record in acceptances)


def test_a_round_of_less_than_no_tokens_is_not_read():
    """Found by the same test."""
    line = (
        "Speculative metrics: Number of speculative tokens: {}, Number of draft tokens: 400, "
        "Number of emitted tokens: 240."
    )
    assert read_lines([line.format(-1)]) == read_lines([line.format(0)]) == ()
    assert len(read_lines([line.format(4)])) == 1

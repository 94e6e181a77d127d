"""The real SGLang with the CPU kit says what transformers says, token for token, in float32.

Each kind of serving (plain, chains of 1, 3 and 5 steps, a tree) gets one server, and every test runs on each.
"""

from __future__ import annotations

import re

import pytest
from cpu_server import serving

pytestmark = pytest.mark.server

LEAST_MARGIN = 1e-3  # of logits of order 10: a hundred times what float32 sums differ by between implementations
CHUNK, POOL = 64, 320
SPECULATION = {"plain": None, "chain-1": (1, 1, 2), "chain-3": (3, 1, 4), "chain-5": (5, 1, 6), "tree": (3, 4, 8)}


LONG = ("chain-1", "chain-3")  # what the longer chain and the tree do, in smaller: make test-servers


@pytest.fixture(
    scope="module",
    params=[pytest.param(arm, marks=pytest.mark.long) if arm in LONG else arm for arm in SPECULATION],
)
def arm(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def server(arm, pair, tmp_path_factory):
    flags = [
        *("--model-path", str(pair.target), "--dtype", "float32", "--mem-fraction-static", "0.3"),
        *("--max-total-tokens", str(POOL), "--max-running-requests", "8", "--context-length", "256"),
        *("--chunked-prefill-size", str(CHUNK), "--schedule-conservativeness", "0.01"),
        *("--enable-metrics", "--skip-server-warmup", "--sleep-on-idle"),
    ]
    if SPECULATION[arm]:
        steps, topk, draft_tokens = map(str, SPECULATION[arm])
        flags += [
            *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(pair.draft)),
            *("--speculative-num-steps", steps, "--speculative-eagle-topk", topk),
            *("--speculative-num-draft-tokens", draft_tokens),
        ]
    with serving(flags, tmp_path_factory.mktemp(arm) / "server.log") as running:
        yield running


def outputs(answers: list[dict]) -> list[tuple[int, ...]]:
    return [tuple(answer["output_ids"]) for answer in answers]


def test_no_reference_is_decided_by_rounding(pair):
    for kind, references in pair.references.items():
        closest = min(reference.margin for reference in references)
        assert closest > LEAST_MARGIN, f"a near tie among the {kind} references: choose another seed"


@pytest.mark.parametrize("batched", [False, True], ids=["one-by-one", "batched"])
def test_ragged_requests(server, pair, arm, batched):
    references = pair.references["ragged"]
    assert len(references) >= 32
    server.flush()
    groups = [references] if batched else [[reference] for reference in references]
    answers = [a for group in groups for a in server.generate([r.prompt for r in group], len(group[0].output))]
    assert outputs(answers) == [reference.output for reference in references]
    if SPECULATION[arm]:
        metas = [answer["meta_info"] for answer in answers]
        right = sum(meta["spec_num_correct_drafts"] for meta in metas)
        assert 0 < right < sum(meta["spec_num_proposed_drafts"] for meta in metas)


def test_end_of_sequence(server, pair):
    """Requests end with the first end-of-sequence token, wherever in a round it falls."""
    references = pair.references["ragged"]
    answers = server.generate([r.prompt for r in references], 20, ignore_eos=False)
    early = 0
    for reference, answer in zip(references, answers, strict=True):
        expected, reason = reference.output, {"type": "length", "length": 20}
        if pair.eos in expected:
            expected, reason = expected[: expected.index(pair.eos) + 1], {"type": "stop", "matched": pair.eos}
        early += len(expected) < 20
        assert tuple(answer["output_ids"]) == expected
        assert answer["meta_info"]["finish_reason"] == reason
    assert 5 <= early < len(references)


def test_stop_strings(server, pair):
    """A stop string of two words ends the request where the words first stand together; the text ends before them."""
    for reference in pair.references["ragged"][:6]:
        stop = pair.text(reference.output[9:11])
        (answer,) = server.generate([reference.prompt], 20, stop=[stop, "never"])
        assert answer["text"] == pair.text(reference.output).partition(stop)[0]
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


def test_prompts_longer_than_a_prefill_chunk(server, pair):
    server.flush()
    logged = len(server.log.read_text())
    for reference in pair.references["long"]:
        assert len(reference.prompt) > 2 * CHUNK
        assert outputs(server.generate([reference.prompt], 12)) == [reference.output]
    chunks = re.findall(r"Prefill batch.*#new-token: (\d+)", server.log.read_text()[logged:])
    assert len(chunks) >= 3 * len(pair.references["long"]) and max(map(int, chunks)) <= CHUNK


def test_prefix_cache_hits(server, pair):
    """A prompt that is in the cache, and one that goes on from a cached prompt and its answer."""
    server.flush()
    reference = max(pair.references["ragged"], key=lambda reference: len(reference.prompt))
    half = len(reference.output) // 2
    first, again, going_on = (
        server.generate([prompt], new_tokens)[0]
        for prompt, new_tokens in (
            (reference.prompt, len(reference.output)),
            (reference.prompt, len(reference.output)),
            (reference.prompt + reference.output[:half], len(reference.output) - half),
        )
    )
    assert outputs([first, again, going_on]) == [reference.output, reference.output, reference.output[half:]]
    cached = [answer["meta_info"]["cached_tokens"] for answer in (first, again, going_on)]
    assert cached[0] == 0 and cached[1] > 0 and cached[2] > cached[1]


def test_full_kv_pool(server, pair):
    """Requests that together need more slots than there are: some are taken back and resumed, and none suffers."""
    server.flush()
    references, before = pair.references["many"], server.metric("sglang:num_retracted_requests_total")
    assert sum(len(r.prompt) + len(r.output) for r in references) > POOL
    # SGLang plans exactly for requests that ignore the end of sequence, and hopefully for others: take others.
    answers = server.generate([r.prompt for r in references], len(references[0].output), ignore_eos=False)
    assert outputs(answers) == [reference.output for reference in references]
    retracted = sum(answer["meta_info"]["num_retractions"] for answer in answers)
    assert retracted > 0
    assert server.metric("sglang:num_retracted_requests_total") - before == retracted


def test_abort_in_mid_request(server, pair):
    reference = pair.references["many"][0]
    event = server.abort_midway(reference.prompt, 200, rid="to be aborted", after=5)
    assert event["meta_info"]["finish_reason"]["type"] == "abort"
    told = event["meta_info"]["completion_tokens"]
    assert 5 <= told < 200
    assert tuple(event["output_ids"][: len(reference.output)]) == reference.output[:told]
    server.flush()  # refused if the aborted request still held slots
    references = pair.references["ragged"][:8]
    answers = server.generate([r.prompt for r in references], 20)
    assert outputs(answers) == [reference.output for reference in references]

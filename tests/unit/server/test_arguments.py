"""Requested and resolved arguments, from the /server_info of a real server with SGLang 0.5.23."""

import pytest

from wiring.engines.sglang import Speculation
from wiring.errors import WiringError
from wiring.server.arguments import ArgumentRow, asked_vs_resolved

CHAIN = {  # an excerpt of /server_info; requested: steps 5, top-k 1, draft tokens 8
    "launch_command": "--device cpu --attention-backend torch_native --disable-overlap-schedule --model-path /models/a "
    "--dtype auto --speculative-algorithm EAGLE3 --speculative-num-steps 5 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 8 --max-running-requests 4",
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 5,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 6,
    "attention_backend": "torch_native",
    "dtype": "float32",
    "kv_cache_dtype": "auto",
    "max_running_requests": 4,
    "chunked_prefill_size": 4096,
    "version": "0.5.23",
}
PLAIN = CHAIN | {
    "launch_command": "--model-path /models/a --max-running-requests=4 --max-running-requests 9",
    "speculative_algorithm": None,
    "speculative_num_steps": None,
    "speculative_eagle_topk": None,
    "speculative_num_draft_tokens": None,
}


def by_name(rows):
    return {row.name: row for row in rows}


@pytest.mark.parametrize("asked", [Speculation(5, 1, 8), None])
def test_the_override_is_found_from_the_caller_s_request_and_from_the_launch_command(asked):
    rows = asked_vs_resolved(asked, CHAIN)
    assert [row.name for row in rows[:3]] == ["steps", "top-k", "draft tokens"]
    assert [(row.asked, row.resolved) for row in rows[:3]] == [(5, 5), (1, 1), (8, 6)]
    assert [row.name for row in rows if row.overridden] == ["draft tokens"]
    assert "steps + 1" in rows[2].reason


def test_auto_and_unset_arguments_are_not_overridden():
    rows = by_name(asked_vs_resolved(Speculation(5, 1, 6), CHAIN))
    assert rows["dtype"] == ArgumentRow("dtype", "auto", "float32", False)
    assert rows["chunked prefill size"] == ArgumentRow("chunked prefill size", None, 4096, False)
    assert rows["attention backend"] == ArgumentRow("attention backend", "torch_native", "torch_native", False)
    assert not rows["draft tokens"].overridden


def test_other_changes_are_not_explained_by_the_rule_for_chains():
    rows = by_name(asked_vs_resolved(Speculation(3, 4, 8), CHAIN | {"speculative_eagle_topk": 1}))
    for name in ("top-k", "draft tokens"):
        assert rows[name].overridden and "steps + 1" not in rows[name].reason


def test_a_server_without_speculation():
    rows = by_name(asked_vs_resolved(None, PLAIN))
    assert (rows["steps"].asked, rows["steps"].resolved, rows["steps"].overridden) == (None, None, False)
    requests = rows["max running requests"]
    assert (requests.asked, requests.resolved, requests.overridden) == (9, 4, True) and "log" in requests.reason


@pytest.mark.parametrize("command", [None, "--dtype 'half", "--dtype", ["--kv-cache-dtype"]])
def test_a_server_that_reports_no_readable_command(command):
    rows = by_name(asked_vs_resolved(None, {**CHAIN, "launch_command": command}))
    assert {row.asked for row in rows.values()} == {None} and rows["draft tokens"].resolved == 6


def test_other_information_is_refused():
    with pytest.raises(WiringError) as error:
        asked_vs_resolved(None, {"status": "fine"})
    assert (error.value.code, error.value.found) == ("no-resolved-arguments", "status")

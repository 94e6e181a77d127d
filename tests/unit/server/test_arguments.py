"""Asked against resolved, on what a real server of SGLang 0.5.23 told of itself."""

import pytest

from wiring.engines.sglang import Speculation
from wiring.errors import WiringError
from wiring.server.arguments import ArgumentRow, asked_vs_resolved, resolved_speculation

CHAIN = {  # an excerpt of /server_info; asked for were steps 5, top-k 1, draft tokens 8
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
def test_the_override_is_seen_whether_we_or_the_command_tell_what_was_asked(asked):
    rows = asked_vs_resolved(asked, CHAIN)
    assert [row.name for row in rows[:3]] == ["steps", "top-k", "draft tokens"]
    assert [(row.asked, row.resolved) for row in rows[:3]] == [(5, 5), (1, 1), (8, 6)]
    assert [row.name for row in rows if row.overridden] == ["draft tokens"]
    assert "steps + 1" in rows[2].reason


def test_auto_and_the_unasked_are_not_overridden():
    rows = by_name(asked_vs_resolved(Speculation(5, 1, 6), CHAIN))
    assert rows["dtype"] == ArgumentRow("dtype", "auto", "float32", False)
    assert rows["chunked prefill size"] == ArgumentRow("chunked prefill size", None, 4096, False)
    assert rows["attention backend"] == ArgumentRow("attention backend", "torch_native", "torch_native", False)
    assert not rows["draft tokens"].overridden


def test_another_change_is_not_explained_by_the_chain_rule():
    rows = by_name(asked_vs_resolved(Speculation(3, 4, 8), CHAIN | {"speculative_eagle_topk": 1}))
    assert rows["top-k"].overridden and "steps + 1" not in rows["top-k"].reason
    assert rows["draft tokens"].overridden and "steps + 1" not in rows["draft tokens"].reason  # the rule is not this


def test_a_server_without_speculation():
    rows = by_name(asked_vs_resolved(None, PLAIN))
    assert (rows["steps"].asked, rows["steps"].resolved, rows["steps"].overridden) == (None, None, False)
    room = rows["max running requests"]
    assert (room.asked, room.resolved, room.overridden) == (9, 4, True) and "log" in room.reason
    assert resolved_speculation(PLAIN) is None
    assert resolved_speculation(CHAIN) == Speculation(5, 1, 6)


def test_a_server_that_does_not_tell_its_command():
    rows = by_name(asked_vs_resolved(None, {**CHAIN, "launch_command": None}))
    assert {row.asked for row in rows.values()} == {None} and rows["draft tokens"].resolved == 6
    assert by_name(asked_vs_resolved(None, CHAIN | {"launch_command": "--dtype 'half"}))["dtype"].asked is None


def test_what_is_not_a_servers_information_is_refused():
    with pytest.raises(WiringError, match="no resolved arguments"):
        asked_vs_resolved(None, {"status": "fine"})

"""Records of what the draft proposed, from verify inputs as SGLang makes them; no server."""

import sys
from types import SimpleNamespace

import pytest
import torch
from draft_records import read_drafts

from wiring.capture.capture_plugin import register
from wiring.capture.folder_summary import read_capture
from wiring.capture.proposals import DraftRecord
from wiring.capture.recorder import Recorder
from wiring.capture.records import DRAFTS, ERROR, FOLDER, capture_environment


def batch(*requests, idle=False):
    return SimpleNamespace(
        reqs=[SimpleNamespace(rid=request) for request in requests],
        forward_mode=SimpleNamespace(is_idle=lambda: idle),
    )


def verify_input(trees):
    """Trees (position of the root, tokens with the root, parent of each node but the root), all of one size."""
    nodes = len(trees[0][1])
    child, sibling = [[[-1] * nodes for _ in trees] for _ in range(2)]
    depths = []
    for i, (_, _, parents) in enumerate(trees):
        depth = [0] * nodes
        for node, parent in enumerate(parents, start=1):
            depth[node] = depth[parent] + 1
            older = [n for n, p in enumerate(parents[: node - 1], start=1) if p == parent]
            if older:
                sibling[i][older[-1]] = node
            else:
                child[i][parent] = node
        depths.append(depth)
    return SimpleNamespace(
        draft_token_num=nodes,
        draft_token=torch.tensor([token for _, tokens, _ in trees for token in tokens]),
        positions=torch.tensor([p + d for (p, _, _), depth in zip(trees, depths, strict=True) for d in depth]),
        retrieve_next_token=torch.tensor(child),
        retrieve_next_sibling=torch.tensor(sibling),
    )


def chain(position, tokens):
    return position, tokens, list(range(len(tokens) - 1))


def test_chains_of_several_requests(tmp_path):
    recorder = Recorder(tmp_path, 100)
    recorder.record_drafts(batch("a", "b"), verify_input([chain(8, [3, 41, 42]), chain(5, [6, 51, 52])]))
    recorder.record_drafts(batch("a"), verify_input([chain(9, [4, 43, 44])]))
    assert read_drafts(tmp_path) == (
        DraftRecord("a", 7, 3, (41, 42), (-1, 0), 0),
        DraftRecord("b", 4, 6, (51, 52), (-1, 0), 0),
        DraftRecord("a", 8, 4, (43, 44), (-1, 0), 1),
    )


def test_a_tree_keeps_who_follows_whom(tmp_path):
    """Nodes 1 and 2 follow the root, 3 and 4 follow 1, 5 follows 2, 6 follows 4."""
    tree = (20, [9, 11, 12, 13, 14, 15, 16], [0, 0, 1, 1, 2, 4])
    Recorder(tmp_path, 9).record_drafts(batch("a"), (verify_input([tree]), "parents", "scores"))  # with its topology
    (record,) = read_drafts(tmp_path)
    assert (record.position, record.root, record.tokens) == (19, 9, (11, 12, 13, 14, 15, 16))
    assert record.parents == (-1, -1, 0, 0, 1, 3)


def test_a_node_that_hangs_nowhere_has_no_parent(tmp_path):
    verify = verify_input([chain(3, [1, 2, 3])])
    verify.retrieve_next_token[0, 1] = -1
    Recorder(tmp_path, 9).record_drafts(batch("a"), verify)
    assert read_drafts(tmp_path)[0].parents == (-1, None)


def test_rounds_and_states_are_counted_together(tmp_path):
    recorder = Recorder(tmp_path, 3)
    rows = SimpleNamespace(
        forward_mode=SimpleNamespace(is_extend=lambda: True, is_draft_extend_v2=lambda: False),
        rids=["a"],
        extend_seq_lens_cpu=[2],
        spec_info=SimpleNamespace(hidden_states=torch.zeros(2, 4)),
        input_ids=torch.tensor([1, 2]),
        positions=torch.tensor([0, 1]),
    )
    for _ in range(2):
        recorder.record(rows)
        recorder.record_drafts(batch("a"), verify_input([chain(2, [2, 7])]))
    assert [record.index for record in read_capture(tmp_path)] == [0, 2]
    assert [record.index for record in read_drafts(tmp_path)] == [1]  # the second round came after the last row


def test_only_requests_that_are_asked_for(tmp_path):
    recorder = Recorder(tmp_path, 100, prefix="mine-")
    trees = [chain(8, [3, 41]), chain(5, [6, 51])]
    recorder.record_drafts(batch("other", "mine-0"), verify_input(trees))
    recorder.record_drafts(batch("other"), verify_input(trees[:1]))
    recorder.record_drafts(batch("mine-1", idle=True), verify_input(trees[:1]))
    recorder.record_drafts(batch(), None)
    Recorder(tmp_path, 100).record_drafts(batch("HEALTH_CHECK_1a"), verify_input(trees[:1]))
    assert [(record.request, record.tokens) for record in read_drafts(tmp_path)] == [("mine-0", (51,))]
    assert len(list(tmp_path.iterdir())) == 1


def test_an_error_is_written_down_and_nothing_is_raised(tmp_path):
    recorder = Recorder(tmp_path, 100)
    recorder.record_drafts(batch("a", "b"), verify_input([chain(8, [3, 41])]))
    recorder.record_drafts(batch("a"), verify_input([chain(8, [3, 41])]))  # recording has ended
    assert [path.name for path in tmp_path.iterdir()] == [ERROR]
    assert "drafts for 1 requests, 2 requests" in (tmp_path / ERROR).read_text()


@pytest.mark.parametrize("drafts", [True, False])
def test_the_hook_is_there_on_request_and_hands_the_result_on(tmp_path, monkeypatch, drafts):
    hooks = {}
    registry = SimpleNamespace(
        HookRegistry=SimpleNamespace(register=lambda target, hook, kind: hooks.update({target: hook})),
        HookType=SimpleNamespace(AROUND="around"),
    )
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", registry)
    monkeypatch.delenv(DRAFTS, raising=False)
    environment = capture_environment(tmp_path / "capture", drafts=drafts)
    assert (environment[DRAFTS] == "1") is drafts and environment[FOLDER] == str(tmp_path / "capture")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    register()
    target = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker.draft"
    assert (target in hooks) is drafts
    if drafts:
        made, seen = verify_input([chain(8, [3, 41])]), []

        def original(*arguments, **options):
            seen.append((arguments, options))
            return made

        this = batch("a")
        assert hooks[target](original, "worker", this, with_topology=False) is made
        assert seen == [(("worker", this), {"with_topology": False})]
        assert read_drafts(tmp_path / "capture") == (DraftRecord("a", 7, 3, (41,), (-1,), 0),)

"""Which phases a capture saw, and why one is missing: from folders as the recorder leaves them; no server."""

import json

import pytest
import torch
from safetensors.torch import save_file

from wiring.capture.folder_summary import summarize
from wiring.capture.records import ERROR, NOTE
from wiring.errors import WiringError
from wiring.layers import Phase

EAGER = {"decode": "disabled", "prefill": "disabled"}
GRAPHS = {"decode": "full", "prefill": "breakable"}


def folder_of(tmp_path, records=(), **entries):
    """A capture folder with records (phase, rows) and, where entries are given, a note."""
    for index, (phase, rows) in enumerate(records):
        tensors = {"token_ids": torch.zeros(rows, dtype=torch.int64), "positions": torch.arange(rows)}
        tensors["states"] = torch.zeros(rows, 6)
        noted = {"phase": phase, "request": "a", "index": str(index)}
        save_file(tensors, tmp_path / f"record-{index:06d}-1.safetensors", noted)
    if entries:
        whole = {"truncated": "", "algorithm": "EAGLE3", "graphs": EAGER, "prefix": "", "names": [], "device": "cpu"}
        (tmp_path / NOTE).write_text(json.dumps(whole | entries))
    return tmp_path


def test_everything_was_seen(tmp_path):
    records = [("prefill", 7), ("verify", 2), ("draft_extend", 2), ("verify", 1), ("draft_extend", 1)]
    found = summarize(folder_of(tmp_path, records, graphs=GRAPHS))
    assert found.phases_seen == tuple(Phase) and found.missing == () and found.reasons == {} and found.truncated == ""
    assert found.rows == {Phase.PREFILL: 7, Phase.VERIFY: 3, Phase.DRAFT_EXTEND: 3}
    assert found.bytes == sum(file.stat().st_size for file in tmp_path.glob("record-*"))
    assert str(found) == "seen: prefill (7 rows), verify (3 rows), draft_extend (3 rows)"


@pytest.mark.parametrize(
    "seen, hidden, half",
    [
        (["verify", "draft_extend"], Phase.PREFILL, "prefill (breakable)"),
        (["prefill", "draft_extend"], Phase.VERIFY, "decode (full)"),
        (["prefill", "verify"], Phase.DRAFT_EXTEND, "decode (full)"),
    ],
)
def test_a_phase_that_cuda_graphs_hide_is_named_with_the_eager_run_that_shows_it(tmp_path, seen, hidden, half):
    found = summarize(folder_of(tmp_path, [(phase, 2) for phase in seen], graphs=GRAPHS, device="cuda"))
    assert found.missing == (hidden,) and found.phases_seen == tuple(map(Phase, seen))
    assert found.reasons[hidden].startswith(f"the server replays CUDA graphs for {half}")
    assert "--disable-cuda-graph" in found.remedies[hidden]
    assert f"{hidden} was not seen: the server replays" in str(found)


def test_without_graphs_nothing_is_blamed_on_them(tmp_path):
    only_prefill = summarize(folder_of(tmp_path, [("prefill", 3)], graphs=EAGER))
    assert only_prefill.reasons == {p: "no request lived to a verify round" for p in (Phase.VERIFY, Phase.DRAFT_EXTEND)}
    assert only_prefill.remedies[Phase.VERIFY] == "Ask for two new tokens or more"


def test_with_graphs_both_explanations_are_given_for_a_round_that_was_not_seen(tmp_path):
    found = summarize(folder_of(tmp_path, [("prefill", 3)], graphs=GRAPHS))
    assert found.missing == (Phase.VERIFY, Phase.DRAFT_EXTEND)
    for phase in found.missing:
        assert found.reasons[phase].startswith("no request lived to a verify round, or the server replays CUDA graphs")


def test_a_forward_that_was_missed_without_graphs_is_not_explained_away(tmp_path):
    found = summarize(folder_of(tmp_path, [("prefill", 3), ("verify", 2)], graphs=EAGER))
    assert "another way" in found.reasons[Phase.DRAFT_EXTEND]


def test_a_bound_explains_what_comes_after_it_and_nothing_else(tmp_path):
    for name, records, bound in (
        ("start", [("prefill", 3)], "rows"),
        ("half", [("prefill", 3), ("verify", 1)], "bytes"),
    ):
        (tmp_path / name).mkdir()
        found = summarize(folder_of(tmp_path / name, records, truncated=bound))
        assert found.truncated == bound and "ended the capture" in str(found)
        assert {found.reasons[phase] for phase in found.missing} == {f"the bound on {bound} was reached before it"}
        assert all("WIRING_CAPTURE_" in found.remedies[phase] for phase in found.missing)
    hidden = folder_of(tmp_path, [("prefill", 3), ("draft_extend", 2)], truncated="rows", graphs=GRAPHS)
    assert "CUDA graphs" in summarize(hidden).reasons[Phase.VERIFY]  # the draft-extend after it was seen


def test_nothing_happened_is_told_apart(tmp_path):
    empty = summarize(tmp_path)
    assert empty.phases_seen == () and empty.bytes == 0 and empty.truncated == ""
    assert all("no forward of the server was seen" in empty.reasons[phase] for phase in Phase)
    other = summarize(folder_of(tmp_path, prefix="mine-", names=["mine-1", "mine-2"]))
    assert "begins with 'mine-' and is one of mine-1, mine-2" in other.reasons[Phase.PREFILL]
    unseen = summarize(folder_of(tmp_path, graphs=EAGER))
    assert "another way" in unseen.reasons[Phase.PREFILL]
    plain = summarize(folder_of(tmp_path, algorithm="NONE"))
    assert "without an EAGLE-3 draft" in plain.reasons[Phase.VERIFY] and "aux_return" in plain.remedies[Phase.VERIFY]


def test_an_error_of_the_recorder_is_a_reason_not_a_crash(tmp_path):
    folder = folder_of(tmp_path, [("prefill", 3)], graphs=EAGER)
    (folder / ERROR).write_text("Traceback\n  ...\nValueError: 7 states for 2 trees of 4 nodes\n")
    found = summarize(folder)
    assert found.rows == {Phase.PREFILL: 3}
    assert found.reasons[Phase.VERIFY].endswith("ValueError: 7 states for 2 trees of 4 nodes")


def test_damage_is_an_error(tmp_path):
    folder_of(tmp_path, [("prefill", 3)], truncated="maybe")
    with pytest.raises(WiringError, match="capture-note.json: not the note of a capture"):
        summarize(tmp_path)
    (tmp_path / NOTE).unlink()
    (tmp_path / "record-000009-1.safetensors").write_bytes(b"half a fi")
    with pytest.raises(WiringError, match="record-000009-1.safetensors: not a capture record"):
        summarize(tmp_path)

"""Which phases a capture recorded, and why one is missing: folders as the recorder leaves them; no server."""

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
    """Return a capture folder with records (phase, rows) and, if entries are given, a note."""
    for index, (phase, rows) in enumerate(records):
        tensors = {"token_ids": torch.zeros(rows, dtype=torch.int64), "positions": torch.arange(rows)}
        tensors["states"] = torch.zeros(rows, 6)
        noted = {"phase": phase, "request": "a", "index": str(index)}
        save_file(tensors, tmp_path / f"record-{index:06d}-1.safetensors", noted)
    if entries:
        whole = {"truncated": "", "algorithm": "EAGLE3", "graphs": EAGER, "prefix": "", "names": [], "device": "cpu"}
        (tmp_path / NOTE).write_text(json.dumps(whole | entries))
    return tmp_path


def test_everything_was_recorded(tmp_path):
    records = [("prefill", 7), ("verify", 2), ("draft_extend", 2), ("verify", 1), ("draft_extend", 1)]
    found = summarize(folder_of(tmp_path, records, graphs=GRAPHS))
    assert found.missing == () and found.remedies == {} and found.truncated == ""
    assert found.rows == {Phase.PREFILL: 7, Phase.VERIFY: 3, Phase.DRAFT_EXTEND: 3}


@pytest.mark.parametrize(
    ("recorded", "entries", "missing", "reason", "remedy"),
    [
        # CUDA graphs hide a phase
        ("verify draft_extend", {"graphs": GRAPHS}, "prefill", "prefill (breakable)", "--disable-cuda-graph"),
        ("prefill draft_extend", {"graphs": GRAPHS}, "verify", "decode (full)", "--disable-cuda-graph"),
        ("prefill verify", {"graphs": GRAPHS}, "draft_extend", "decode (full)", "--disable-cuda-graph"),
        ("prefill", {"graphs": GRAPHS}, "verify draft_extend", "verify round, or ", "--disable-cuda-graph"),
        # without graphs they are not blamed
        ("prefill", {"graphs": EAGER}, "verify draft_extend", "verify round", "two new tokens"),
        ("prefill verify", {"graphs": EAGER}, "draft_extend", "hooks", "release"),
        ("", {"graphs": EAGER}, "prefill", "hooks", "release"),
        # a bound explains the phases after it and no others
        ("prefill", {"truncated": "rows"}, "verify draft_extend", "bound on rows", "WIRING_CAPTURE_TOKENS"),
        ("prefill verify", {"truncated": "bytes"}, "draft_extend", "bound on bytes", "WIRING_CAPTURE_BYTES"),
        ("prefill verify", {"truncated": "rows", "graphs": EAGER}, "draft_extend", "hooks", "release"),
        ("prefill draft_extend", {"truncated": "rows", "graphs": GRAPHS}, "verify", "CUDA graphs", "--disable"),
        # nothing was recorded
        ("", {}, "prefill verify draft_extend", "no forward", "WIRING_CAPTURE_DIR"),
        ("", {"prefix": "m-", "names": ["m-1", "m-2"]}, "prefill", "'m-' and is one of m-1, m-2", "id"),
        ("", {"algorithm": "NONE"}, "prefill verify", "NONE", "EAGLE-3"),
    ],
)
def test_a_missing_phase_has_a_reason_and_a_remedy(tmp_path, recorded, entries, missing, reason, remedy):
    found = summarize(folder_of(tmp_path, [(phase, 2) for phase in recorded.split()], **entries))
    assert set(found.missing) == set(Phase) - set(map(Phase, recorded.split()))
    for phase in map(Phase, missing.split()):
        assert reason in found.reasons[phase] and remedy in found.remedies[phase]


def test_an_error_of_the_recorder_is_a_reason(tmp_path):
    folder = folder_of(tmp_path, [("prefill", 3)], graphs=EAGER)
    (folder / ERROR).write_text("Traceback\n  ...\nValueError: 7 states for 2 trees of 4 nodes\n")
    found = summarize(folder)
    assert found.rows == {Phase.PREFILL: 3}
    assert found.reasons[Phase.VERIFY].endswith("ValueError: 7 states for 2 trees of 4 nodes")


def test_damage_is_an_error(tmp_path):
    folder_of(tmp_path, [("prefill", 3)], truncated="maybe")
    with pytest.raises(WiringError) as error:
        summarize(tmp_path)
    assert (error.value.code, error.value.where) == ("capture-note-damaged", str(tmp_path / NOTE))
    (tmp_path / NOTE).unlink()
    damaged = tmp_path / "record-000009-1.safetensors"
    damaged.write_bytes(b"half a fi")
    with pytest.raises(WiringError) as error:
        summarize(tmp_path)
    assert (error.value.code, error.value.where) == ("capture-record-damaged", str(damaged))

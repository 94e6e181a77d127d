"""The recorder on forwards as SGLang makes them, and the reader on what it wrote; no server."""

import sys
from types import SimpleNamespace

import pytest
import torch

from wiring.boundary import Phase
from wiring.engine.capture import (
    ERROR,
    FOLDER,
    PREFIX,
    ROWS,
    CaptureRecord,
    capture_environment,
    final_states,
    read_capture,
)
from wiring.engine.capture_plugin import Recorder, register
from wiring.errors import WiringError

WIDTH = 6


def mode(*, extend=False, after_verify=False):
    return SimpleNamespace(is_extend=lambda: extend, is_draft_extend_v2=lambda: after_verify)


def state(position):
    """A state that tells its position."""
    return torch.full((WIDTH,), float(position))


def prefill(recorder, requests):
    """One draft forward after a prefill of several requests: (request, first position, tokens fed)."""
    positions = [first + i for _, first, fed in requests for i in range(len(fed))]
    batch = SimpleNamespace(
        forward_mode=mode(extend=True), rids=[request for request, _, _ in requests],
        extend_seq_lens_cpu=[len(fed) for _, _, fed in requests],
        spec_info=SimpleNamespace(hidden_states=torch.stack([state(p) for p in positions]), num_accept_tokens=None),
    )  # fmt: skip
    recorder.record(torch.tensor([t for _, _, fed in requests for t in fed]), torch.tensor(positions), batch)


def verify(recorder, requests, drafts=4, lengths_known=True):
    """One draft forward after a verify: (request, first position, tokens accepted); the other rows are rejected."""
    fed = [t for _, _, right in requests for t in right + [0] * (drafts - len(right))]
    positions = [first + i for _, first, _ in requests for i in range(drafts)]
    rows = [
        state(first + i) if i < len(right) else torch.full((WIDTH,), -1.0)
        for _, first, right in requests
        for i in range(drafts)
    ]
    batch = SimpleNamespace(
        forward_mode=mode(after_verify=True), rids=[request for request, _, _ in requests],
        extend_seq_lens_cpu=[drafts] * len(requests) if lengths_known else None,
        spec_info=SimpleNamespace(
            hidden_states=torch.stack(rows), num_tokens_per_req=drafts,
            num_accept_tokens=torch.tensor([len(right) for _, _, right in requests]),
        ),
    )  # fmt: skip
    recorder.record(torch.tensor(fed), torch.tensor(positions), batch)


def rows(record):
    return record.positions.tolist(), record.token_ids.tolist(), record.states[:, 0].tolist()


def test_a_forward_over_several_requests_gives_each_its_rows(tmp_path):
    recorder = Recorder(tmp_path, 100)
    prefill(recorder, [("a", 0, [11, 12, 13]), ("b", 5, [26, 27])])
    verify(recorder, [("a", 3, [14, 15]), ("b", 7, [28])])
    verify(recorder, [("a", 5, [16])], lengths_known=False)
    records = read_capture(tmp_path)
    assert [(r.index, r.request, r.phase) for r in records] == [
        (0, "a", Phase.PREFILL), (1, "b", Phase.PREFILL), (2, "a", Phase.VERIFY), (3, "b", Phase.VERIFY),
        (4, "a", Phase.VERIFY),
    ]  # fmt: skip
    assert rows(records[0]) == ([0, 1, 2], [11, 12, 13], [0, 1, 2])
    assert rows(records[1]) == ([5, 6], [26, 27], [5, 6])
    assert rows(records[2]) == ([3, 4], [14, 15], [3, 4])  # the two rejected rows are not there
    assert rows(records[3]) == ([7], [28], [7])
    assert rows(records[4]) == ([5], [16], [5])


def test_draft_steps_trial_runs_and_health_checks_leave_no_record(tmp_path):
    recorder = Recorder(tmp_path, 100)
    tokens, positions, states = torch.tensor([1]), torch.tensor([0]), torch.zeros(1, WIDTH)
    step = SimpleNamespace(
        forward_mode=mode(), rids=["a"], extend_seq_lens_cpu=None, spec_info=SimpleNamespace(hidden_states=states)
    )
    recorder.record(tokens, positions, step)
    trial = SimpleNamespace(**{**vars(step), "forward_mode": mode(extend=True), "rids": None})
    recorder.record(tokens, positions, trial)
    prefill(recorder, [("HEALTH_CHECK_1a2b", 0, [3])])
    assert list(tmp_path.iterdir()) == []


def test_the_prefix_chooses_requests(tmp_path):
    recorder = Recorder(tmp_path, 100, prefix="mine-")
    prefill(recorder, [("warm-up", 0, [1, 2]), ("mine-0", 0, [3, 4])])
    (record,) = read_capture(tmp_path)
    assert (record.request, rows(record)[1]) == ("mine-0", [3, 4])


def test_the_limit_counts_rows(tmp_path):
    recorder = Recorder(tmp_path, 5)
    for first in (0, 3, 6):
        prefill(recorder, [("a", first, [first + 1, first + 2, first + 3])])
    assert [rows(record)[0] for record in read_capture(tmp_path)] == [[0, 1, 2], [3, 4]]


def test_states_keep_their_bits(tmp_path):
    exact = torch.randn(2, WIDTH, dtype=torch.bfloat16)
    batch = SimpleNamespace(
        forward_mode=mode(extend=True), rids=["a"], extend_seq_lens_cpu=[2],
        spec_info=SimpleNamespace(hidden_states=exact),
    )  # fmt: skip
    Recorder(tmp_path, 9).record(torch.tensor([1, 2]), torch.tensor([0, 1]), batch)
    (record,) = read_capture(tmp_path)
    assert record.states.dtype == torch.float32 and torch.equal(record.states, exact.float())


def test_an_error_is_written_down_and_nothing_is_raised(tmp_path):
    recorder = Recorder(tmp_path, 100)
    wrong = SimpleNamespace(
        forward_mode=mode(extend=True), rids=["a"], extend_seq_lens_cpu=[7],
        spec_info=SimpleNamespace(hidden_states=torch.zeros(2, WIDTH)),
    )  # fmt: skip
    recorder.record(torch.tensor([1, 2]), torch.tensor([0, 1]), wrong)
    assert "7" in (tmp_path / ERROR).read_text()
    prefill(recorder, [("a", 0, [1])])  # recording has ended
    with pytest.raises(WiringError, match="capture failed in the server.*2 tokens and 2 states"):
        read_capture(tmp_path)
    assert not list(tmp_path.glob("record-*"))


def test_a_folder_that_cannot_be_written_does_not_raise_either(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    prefill(Recorder(tmp_path / "file", 100), [("a", 0, [1])])
    assert "Error" in capsys.readouterr().err


def test_a_bad_setting_ends_the_capture_only(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setenv(ROWS, "many")
    register()
    assert "many" in (tmp_path / ERROR).read_text()


def test_the_hook_hands_the_forward_on_unchanged(tmp_path, monkeypatch):
    hooks = {}
    registry = SimpleNamespace(
        HookRegistry=SimpleNamespace(register=lambda target, hook, kind: hooks.update({target.split(".")[-2]: hook})),
        HookType=SimpleNamespace(AROUND="around"),
    )
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", registry)
    for name, value in capture_environment(tmp_path / "capture", rows=10).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("WIRING_SGLANG_CPU", raising=False)
    register()
    assert set(hooks) == {"LlamaModel", "EAGLEDraftExtendCudaGraphRunner"}  # the second replays graphs on a GPU
    batch = SimpleNamespace(
        forward_mode=mode(extend=True), rids=["a"], extend_seq_lens_cpu=[2], input_ids=torch.tensor([1, 2]),
        positions=torch.tensor([0, 1]), spec_info=SimpleNamespace(hidden_states=torch.ones(2, WIDTH)),
    )  # fmt: skip
    seen = []

    def original(*arguments, **options):
        seen.append((arguments, options))
        return "result"

    forward = ("model", batch.input_ids, batch.positions, batch, "embeddings")
    assert hooks["LlamaModel"](original, *forward, pp_proxy_tensors=None) == "result"
    assert hooks["EAGLEDraftExtendCudaGraphRunner"](original, "runner", batch, "index") == "result"
    assert seen[0][0] == forward and seen[0][1] == {"pp_proxy_tensors": None}
    assert seen[1] == (("runner", batch, "index"), {})
    assert torch.equal(batch.spec_info.hidden_states, torch.ones(2, WIDTH))
    assert [rows(record)[0] for record in read_capture(tmp_path / "capture")] == [[0, 1], [0, 1]]


def test_the_environment_refuses_a_folder_in_use(tmp_path):
    environment = capture_environment(tmp_path / "new", rows=7, prefix="p")
    assert environment == {FOLDER: str(tmp_path / "new"), ROWS: "7", PREFIX: "p"}
    prefill(Recorder(tmp_path / "new", 9), [("a", 0, [1])])
    with pytest.raises(WiringError, match="earlier capture"):
        capture_environment(tmp_path / "new")


def test_an_empty_folder_and_a_damaged_record_are_told(tmp_path):
    with pytest.raises(WiringError, match="nothing was captured.*WIRING_CAPTURE_DIR"):
        read_capture(tmp_path)
    (tmp_path / "record-000000-1.safetensors").write_bytes(b"half a fi")
    with pytest.raises(WiringError, match="not a capture record"):
        read_capture(tmp_path)


def record(index, phase, positions, fed, value, request="a"):
    return CaptureRecord(
        phase, torch.tensor(fed), torch.tensor(positions), torch.full((len(fed), WIDTH), float(value)), request, index
    )


def test_final_states_keep_the_last_record_of_a_position_and_stop_at_the_text():
    text = [10, 11, 12, 13, 14]
    found = final_states(
        [
            record(3, Phase.VERIFY, [3, 4, 5], [14, 15, 16], 3),  # goes beyond the text
            record(2, Phase.VERIFY, [2, 3], [13, 14], 2),  # seen again by the record above, which is later
            record(0, Phase.PREFILL, [1, 0], [12, 11], 0),
        ],
        torch.tensor(text),
    )
    assert set(found) == {Phase.PREFILL, Phase.VERIFY}
    positions, states = found[Phase.PREFILL]
    assert positions.tolist() == [0, 1] and states.shape == (2, WIDTH)
    positions, states = found[Phase.VERIFY]
    assert positions.dtype == torch.int64 and positions.tolist() == [2, 3, 4]
    assert states[:, 0].tolist() == [2, 3, 3]


def test_final_states_refuse_another_text_and_mixed_requests():
    with pytest.raises(WiringError, match="differs at position 2.*expected token 13, found token 12"):
        final_states([record(0, Phase.PREFILL, [0, 1], [11, 12], 0)], [10, 11, 13])
    both = [record(0, Phase.PREFILL, [0], [11], 0), record(1, Phase.PREFILL, [0], [11], 0, request="b")]
    with pytest.raises(WiringError, match="several requests"):
        final_states(both, [10, 11])
    assert final_states([], [10]) == {}

"""The recorder on forwards with SGLang's objects, and the reader on its records; no server."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from wiring.capture.capture_plugin import FORWARD, REPLAY, SAMPLE, register
from wiring.capture.folder_summary import read_capture
from wiring.capture.recorder import Recorder
from wiring.capture.records import (
    BYTES,
    ERROR,
    FOLDER,
    NAMES,
    NOTE,
    PREFIX,
    ROWS,
    CaptureRecord,
    capture_environment,
    final_states,
)
from wiring.errors import WiringError
from wiring.layers import Phase

WIDTH = 6


def mode(*, extend=False, after_verify=False):
    return SimpleNamespace(is_extend=lambda: extend, is_draft_extend_v2=lambda: after_verify)


def state(position):
    """Return a state that holds its position."""
    return torch.full((WIDTH,), float(position))


def forward(mode, requests, fed, positions, states, lengths, **spec):
    """SGLang's ForwardBatch of the draft."""
    return SimpleNamespace(
        forward_mode=mode,
        rids=requests,
        input_ids=torch.tensor(fed),
        positions=torch.tensor(positions),
        extend_seq_lens_cpu=lengths,
        spec_info=SimpleNamespace(hidden_states=states, **spec),
    )


def prefill(recorder, requests):
    """One draft forward after a prefill of several requests: (request, first position, tokens fed)."""
    positions = [first + i for _, first, fed in requests for i in range(len(fed))]
    fed = [token for _, _, tokens in requests for token in tokens]
    states = torch.stack([state(p) for p in positions])
    lengths = [len(tokens) for _, _, tokens in requests]
    recorder.record(forward(mode(extend=True), [r for r, _, _ in requests], fed, positions, states, lengths))


def nodes_of(requests, nodes):
    """Return tokens, positions and states of chains of `nodes`: (request, first position, accepted tokens)."""
    tokens = [token for _, _, right in requests for token in right + [0] * (nodes - len(right))]
    positions = [first + i for _, first, _ in requests for i in range(nodes)]
    states = [state(first + i if i < len(right) else -1) for _, first, right in requests for i in range(nodes)]
    return tokens, positions, torch.stack(states)


def verify(recorder, requests, nodes=4):
    """The output of the target for chains; see `nodes_of`."""
    tokens, positions, states = nodes_of(requests, nodes)
    accepted = [[nodes * i + n if n < len(r) else -1 for n in range(nodes)] for i, (_, _, r) in enumerate(requests)]
    recorder.record_verified(
        SimpleNamespace(draft_token_num=nodes, positions=torch.tensor(positions)),
        schedule_batch([request for request, _, _ in requests]),
        SimpleNamespace(hidden_states=states),
        (torch.tensor(tokens), torch.tensor([len(right) for _, _, right in requests]), torch.tensor(accepted)),
    )


def schedule_batch(requests, idle=False):
    return SimpleNamespace(
        reqs=[SimpleNamespace(rid=request) for request in requests],
        forward_mode=SimpleNamespace(is_idle=lambda: idle),
    )


def draft_extend(recorder, requests, drafts=4, lengths_known=True):
    """One draft forward after a verify; see `nodes_of`."""
    accepted = torch.tensor([len(right) for _, _, right in requests])
    lengths = [drafts] * len(requests) if lengths_known else None
    spec = {"num_tokens_per_req": drafts, "num_accept_tokens": accepted}
    names = [request for request, _, _ in requests]
    recorder.record(forward(mode(after_verify=True), names, *nodes_of(requests, drafts), lengths, **spec))


def rows(record):
    return record.positions.tolist(), record.token_ids.tolist(), record.states[:, 0].tolist()


def test_a_forward_over_several_requests_gives_each_its_rows(tmp_path):
    recorder = Recorder(tmp_path, 100)
    prefill(recorder, [("a", 0, [11, 12, 13]), ("b", 5, [26, 27])])
    verify(recorder, [("a", 3, [14, 15]), ("b", 7, [28])])
    draft_extend(recorder, [("a", 3, [14, 15]), ("b", 7, [28])])
    draft_extend(recorder, [("a", 5, [16])], lengths_known=False)
    records = read_capture(tmp_path)
    assert [(r.index, r.request, r.phase) for r in records] == [
        (0, "a", Phase.PREFILL),
        (1, "b", Phase.PREFILL),
        (2, "a", Phase.VERIFY),
        (3, "b", Phase.VERIFY),
        (4, "a", Phase.DRAFT_EXTEND),
        (5, "b", Phase.DRAFT_EXTEND),
        (6, "a", Phase.DRAFT_EXTEND),
    ]
    assert rows(records[0]) == ([0, 1, 2], [11, 12, 13], [0, 1, 2])
    assert rows(records[1]) == ([5, 6], [26, 27], [5, 6])
    assert rows(records[2]) == ([3, 4], [14, 15], [3, 4])  # the two rejected rows are not there
    assert rows(records[3]) == ([7], [28], [7])
    assert rows(records[4]) == rows(records[2]) and rows(records[5]) == rows(records[3])
    assert rows(records[6]) == ([5], [16], [5])


def test_of_a_tree_the_accepted_path_is_recorded(tmp_path):
    """Two requests with trees of 4 nodes; of the second the path is root, node 2, node 3. Node n's state is 10 n."""
    recorder, nodes = Recorder(tmp_path, 100), torch.arange(8.0)
    made = SimpleNamespace(draft_token_num=4, positions=torch.tensor([5, 6, 6, 7, 8, 9, 9, 10]))
    sampled = (
        torch.tensor([50, 51, 52, 53, 60, 61, 62, 63]),
        torch.tensor([1, 3]),
        torch.tensor([[0, -1, -1], [4, 6, 7]]),
    )
    output = SimpleNamespace(hidden_states=10 * nodes[:, None].expand(8, WIDTH))
    recorder.record_verified(made, schedule_batch(["a", "b"]), output, sampled)
    first, second = read_capture(tmp_path)
    assert rows(first) == ([5], [50], [0]) and rows(second) == ([8, 9, 10], [60, 62, 63], [40, 60, 70])
    assert (first.request, second.request) == ("a", "b") and first.phase is second.phase is Phase.VERIFY


def test_a_fault_between_the_target_and_the_draft_shows(tmp_path):
    recorder = Recorder(tmp_path, 100)
    verify(recorder, [("a", 3, [14, 15])])
    draft_extend(recorder, [("a", 4, [14, 15])])  # fed one position late
    records = read_capture(tmp_path)
    assert records[0].token_ids.tolist() == records[1].token_ids.tolist()
    assert not torch.equal(records[0].states, records[1].states)


def test_draft_steps_trial_runs_and_health_checks_leave_no_record(tmp_path):
    recorder = Recorder(tmp_path, 100)
    states = torch.zeros(1, WIDTH)
    recorder.record(forward(mode(), ["a"], [1], [0], states, None))
    recorder.record(forward(mode(extend=True), None, [1], [0], states, None))
    prefill(recorder, [("HEALTH_CHECK_1a2b", 0, [3])])
    verify(recorder, [("HEALTH_CHECK_1a2b", 1, [3])])
    idle = (SimpleNamespace(draft_token_num=1), schedule_batch([], idle=True), SimpleNamespace(hidden_states=states))
    recorder.record_verified(*idle, ())
    nothing = SimpleNamespace(hidden_states=None)  # a server without auxiliary states
    recorder.record_verified(SimpleNamespace(draft_token_num=1), schedule_batch(["a"]), nothing, ())
    recorder.see(["HEALTH_CHECK_1a2b"], dict)
    recorder.see(None, dict)
    assert list(tmp_path.iterdir()) == []


def test_prefix_and_names_choose_requests(tmp_path):
    both = {"prefix": "mi", "names": ["mine-0", "other"]}
    for chosen in ({"prefix": "mine-"}, {"names": ["mine-0", "mine-7"]}, both):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        recorder = Recorder(folder, 100, **chosen)
        prefill(recorder, [("other", 0, [1, 2]), ("mine-0", 0, [3, 4])])
        verify(recorder, [("other", 2, [5]), ("mine-0", 2, [6, 7])])
        draft_extend(recorder, [("other", 2, [5])])
        assert [(r.request, rows(r)[1]) for r in read_capture(folder)] == [("mine-0", [3, 4]), ("mine-0", [6, 7])]


def note(folder):
    return json.loads((folder / NOTE).read_text())


def test_the_row_bound_counts_tokens_and_is_noted_when_reached(tmp_path):
    recorder = Recorder(tmp_path, 5)
    for first in (0, 3, 6):
        prefill(recorder, [("a", first, [first + 1, first + 2, first + 3])])
    assert [rows(record)[0] for record in read_capture(tmp_path)] == [[0, 1, 2], [3, 4]]
    assert note(tmp_path)["truncated"] == "rows"


def test_both_halves_of_a_round_are_cut_off_at_the_same_token(tmp_path):
    recorder = Recorder(tmp_path, 6)
    prefill(recorder, [("a", 0, [1, 2, 3])])
    for first in (3, 5, 7):
        verify(recorder, [("a", first, [first + 1, first + 2])])
        draft_extend(recorder, [("a", first, [first + 1, first + 2])])
    found = read_capture(tmp_path)
    assert [(r.phase, rows(r)[0]) for r in found] == [
        (Phase.PREFILL, [0, 1, 2]),
        (Phase.VERIFY, [3, 4]),
        (Phase.DRAFT_EXTEND, [3, 4]),
        (Phase.VERIFY, [5]),
        (Phase.DRAFT_EXTEND, [5]),
    ]


def test_a_bound_that_is_just_enough_is_no_truncation(tmp_path):
    recorder = Recorder(tmp_path, 3)
    prefill(recorder, [("a", 0, [1, 2, 3])])
    recorder.see(["a"], lambda: {"device": "cpu"})
    assert note(tmp_path)["truncated"] == "" and note(tmp_path)["device"] == "cpu"


def test_the_byte_bound_holds_for_the_files_and_is_noted(tmp_path):
    recorder = Recorder(tmp_path, 10**6, max_bytes=20_000)
    for first in range(0, 3000, 30):
        prefill(recorder, [("a" * 40, first, list(range(1, 31)))])
    files = list(tmp_path.glob("record-*"))
    assert 10_000 < sum(file.stat().st_size for file in files) <= 20_000
    assert note(tmp_path)["truncated"] == "bytes" and note(tmp_path)["bytes"] == 20_000
    positions = [t for record in read_capture(tmp_path) for t in rows(record)[0]]
    assert positions == list(range(len(positions)))  # the first ones, without a gap
    assert not (tmp_path / ERROR).exists()


def test_the_header_allowance_is_enough_for_short_records(tmp_path):
    """The byte bound includes the headers of many short records."""
    recorder = Recorder(tmp_path, 10**6, max_bytes=30_000)
    for first in range(200):
        prefill(recorder, [("r" * 200, first, [1])])
    assert sum(file.stat().st_size for file in tmp_path.glob("record-*")) <= 30_000


def test_states_keep_their_bits(tmp_path):
    exact = torch.randn(2, WIDTH, dtype=torch.bfloat16)
    Recorder(tmp_path, 9).record(forward(mode(extend=True), ["a"], [1, 2], [0, 1], exact, [2]))
    (record,) = read_capture(tmp_path)
    assert record.states.dtype == torch.float32 and torch.equal(record.states, exact.float())
    assert record.dtype == "bfloat16"
    (file,) = tmp_path.glob("record-*")
    assert load_file(file)["states"].dtype == torch.bfloat16  # not widened on disk


def test_an_error_is_written_down_and_nothing_is_raised(tmp_path):
    recorder = Recorder(tmp_path, 100)
    recorder.record(forward(mode(extend=True), ["a"], [1, 2], [0, 1], torch.zeros(2, WIDTH), [7]))
    assert "7" in (tmp_path / ERROR).read_text()
    prefill(recorder, [("a", 0, [1])])  # recording has ended
    with pytest.raises(WiringError) as error:
        read_capture(tmp_path)
    assert error.value.code == "capture-failed" and "2 tokens and 2 states" in error.value.found
    assert not list(tmp_path.glob("record-*"))


def test_a_folder_that_cannot_be_written_does_not_raise_either(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    prefill(Recorder(tmp_path / "file", 100), [("a", 0, [1])])
    assert "Error" in capsys.readouterr().err


@pytest.mark.parametrize("setting, value", [(ROWS, "many"), (BYTES, "-1"), (NAMES, "a,b"), (NAMES, "[1]")])
def test_a_bad_setting_ends_the_capture_only(tmp_path, monkeypatch, setting, value):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setenv(setting, value)
    register()
    assert setting in (tmp_path / ERROR).read_text() and value in (tmp_path / ERROR).read_text()


@pytest.fixture
def hooks(monkeypatch):
    """The registered hooks by target."""
    found = {}
    registry = SimpleNamespace(
        HookRegistry=SimpleNamespace(register=lambda target, hook, kind: found.update({target: hook})),
        HookType=SimpleNamespace(AROUND="around"),
    )
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", registry)
    monkeypatch.delenv("WIRING_SGLANG_CPU", raising=False)
    return found


def test_the_hooks_pass_the_forwards_on_unchanged(tmp_path, monkeypatch, hooks):
    for name, value in capture_environment(tmp_path / "capture", rows=10).items():
        monkeypatch.setenv(name, value)
    register()
    assert set(hooks) == {FORWARD, REPLAY, SAMPLE}  # the second replays graphs on a GPU
    batch = forward(mode(extend=True), ["a"], [1, 2], [0, 1], torch.ones(2, WIDTH), [2])
    seen = []

    def original(*arguments, **options):
        seen.append((arguments, options))
        return "result" if len(arguments) == 2 else (torch.tensor([7]), torch.tensor([1]), torch.tensor([[0]]))

    eagle3 = SimpleNamespace(name="EAGLE3")
    target, draft = (SimpleNamespace(is_draft_worker=d, device="cpu", spec_algorithm=eagle3) for d in (False, True))
    assert hooks[FORWARD](original, target, batch) == "result"  # the target's own forward is not the draft's input
    assert hooks[FORWARD](original, draft, batch, reinit_attn_backend=False) == "result"
    assert hooks[REPLAY](original, "runner", batch, "index")[0] == 7
    tree = SimpleNamespace(draft_token_num=1, positions=torch.tensor([2]))
    verified = (tree, schedule_batch(["a"]), SimpleNamespace(hidden_states=torch.ones(1, WIDTH)))
    assert hooks[SAMPLE](original, *verified, None, watermark_state=None)[1] == 1
    assert seen == [
        ((target, batch), {}),
        ((draft, batch), {"reinit_attn_backend": False}),
        (("runner", batch, "index"), {}),
        ((*verified, None), {"watermark_state": None}),
    ]
    assert torch.equal(batch.spec_info.hidden_states, torch.ones(2, WIDTH))
    assert [rows(record)[0] for record in read_capture(tmp_path / "capture")] == [[0, 1], [0, 1], [2]]
    graphs = {"decode": "disabled", "prefill": "disabled"}
    assert note(tmp_path / "capture")["graphs"] == graphs and note(tmp_path / "capture")["algorithm"] == "EAGLE3"


def test_on_a_gpu_the_graphs_of_both_halves_are_noted(tmp_path, monkeypatch, hooks):
    for name, value in capture_environment(tmp_path / "capture", names=["mine"]).items():
        monkeypatch.setenv(name, value)
    register()
    graph = SimpleNamespace(
        cuda_graph_config=SimpleNamespace(
            decode=SimpleNamespace(backend="full"), prefill=SimpleNamespace(backend="breakable")
        )
    )
    context = SimpleNamespace(get_exec=lambda: SimpleNamespace(graph=graph))
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)
    runner = SimpleNamespace(is_draft_worker=False, device="cuda", spec_algorithm=SimpleNamespace(name="EAGLE3"))
    hooks[FORWARD](lambda *_: None, runner, SimpleNamespace(rids=["another"]))
    found = note(tmp_path / "capture")
    assert found["graphs"] == {"decode": "full", "prefill": "breakable"} and found["names"] == ["mine"]


def test_the_environment_refuses_a_folder_in_use(tmp_path):
    environment = capture_environment(tmp_path / "new", rows=7, prefix="p", names=["p,1", "p 2"], max_bytes=10)
    assert environment.pop("WIRING_CAPTURE_DRAFTS") == "" and json.loads(environment.pop(NAMES)) == ["p,1", "p 2"]
    assert environment == {FOLDER: str(tmp_path / "new"), ROWS: "7", PREFIX: "p", BYTES: "10"}
    prefill(Recorder(tmp_path / "new", 9), [("a", 0, [1])])
    with pytest.raises(WiringError) as error:
        capture_environment(tmp_path / "new")
    assert (error.value.code, error.value.where) == ("capture-folder-in-use", str(tmp_path / "new"))


def test_an_empty_folder_and_a_damaged_record_are_refused(tmp_path):
    with pytest.raises(WiringError) as error:
        read_capture(tmp_path)
    assert error.value.code == "nothing-captured" and FOLDER in error.value.remedy
    (tmp_path / "record-000000-1.safetensors").write_bytes(b"half a fi")
    with pytest.raises(WiringError) as error:
        read_capture(tmp_path)
    assert error.value.code == "capture-record-damaged"


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


def test_final_states_refuse_another_text():
    with pytest.raises(WiringError) as error:
        final_states([record(0, Phase.PREFILL, [0, 1], [11, 12], 0)], [10, 11, 13])
    found = error.value
    assert (found.code, found.expected, found.found) == ("capture-of-another-text", "token 13", "token 12")
    assert found.where == "request a, position 2"
    assert final_states([], [10]) == {}

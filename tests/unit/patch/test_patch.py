"""The cure: planned by rule, previewed, applied to a copy, undone; the reader's files stay as they are."""

import hashlib
import json
import multiprocessing
import random
import time
from types import SimpleNamespace

import pytest

from wiring.checkpoints.copy_record import MARKER, read_copy_record
from wiring.errors import WiringError
from wiring.patch import draft_copy, embedding_plugin
from wiring.patch.fix_kinds import Form, with_ids
from wiring.patch.plan import plan_cures

TARGET = {"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61}
AS_SERVED = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 31, 59], "use_aux_hidden_state": True},
}
CASE = (0, 3, 31)


@pytest.fixture
def draft(tmp_path):
    folder = tmp_path / "draft"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(AS_SERVED))
    (folder / "model.safetensors").write_bytes(b"tensors")
    return folder


def everything(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def cure(form=Form.CONFIG):
    plan = plan_cures("0.5.23", TARGET, AS_SERVED, CASE)
    return next(c for c in plan.cures if c.form is form)


def test_only_the_ids_change_and_the_original_dict_stays():
    changed = with_ids(AS_SERVED, (0, 3, 31))
    assert changed["eagle_config"] == {"eagle_aux_hidden_state_layer_ids": [0, 3, 31], "use_aux_hidden_state": True}
    assert AS_SERVED["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [3, 31, 59]


def test_preview_shows_the_change_and_writes_nothing(draft, tmp_path):
    before = everything(draft)
    text = draft_copy.preview(draft, cure(Form.PLUGIN))
    removed = [line[1:].strip(" ,") for line in text.splitlines() if line.startswith("-   ")]
    added = [line[1:].strip(" ,") for line in text.splitlines() if line.startswith("+   ")]
    assert removed == ["3", "31", "59"] and added == ["-1", "2", "30"]
    assert "+ WIRING_EMBEDDING_ID=1" in text
    assert everything(draft) == before and [p.name for p in tmp_path.iterdir()] == ["draft"]


def test_apply_makes_a_copy_and_undo_removes_it(draft, tmp_path):
    before = everything(draft)
    patched = draft_copy.apply(draft, cure(), tmp_path / "cured", CASE)
    config = json.loads((patched.folder / "config.json").read_text())
    assert config == with_ids(AS_SERVED, (0, 3, 31))
    assert (patched.folder / "model.safetensors").read_bytes() == b"tensors"
    draft_copy.undo(patched.folder)
    assert [p.name for p in tmp_path.iterdir()] == ["draft"]
    assert everything(draft) == before


def test_apply_twice_replaces_its_own_copy(draft, tmp_path):
    draft_copy.apply(draft, cure(), tmp_path / "cured", CASE)
    patched = draft_copy.apply(draft, cure(Form.PLUGIN), tmp_path / "cured", CASE)
    assert json.loads((patched.folder / "config.json").read_text()) == with_ids(AS_SERVED, (-1, 2, 30))


def test_folders_of_others_are_left_alone(draft, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("keep")
    with pytest.raises(WiringError, match="left alone"):
        draft_copy.apply(draft, cure(), mine, CASE)
    with pytest.raises(WiringError, match="left alone"):
        draft_copy.undo(mine)
    with pytest.raises(WiringError, match="left alone"):
        draft_copy.undo(draft)
    with pytest.raises(WiringError, match="in the draft itself"):
        draft_copy.apply(draft, cure(), draft / "cured", CASE)
    assert (mine / "notes.txt").read_text() == "keep" and len(everything(draft)) == 2


def test_a_failed_apply_leaves_nothing_behind(draft, tmp_path, monkeypatch):
    monkeypatch.setattr(draft_copy, "write_json", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(WiringError, match="cannot be written.*disk full"):
        draft_copy.apply(draft, cure(), tmp_path / "cured", CASE)
    assert [p.name for p in tmp_path.iterdir()] == ["draft"]


@pytest.mark.parametrize(
    "ids, boundaries",
    [
        ([-1, 2, 30], [0, 3, 31]),
        ([3, 31, 59], [3, 31, 59]),
        ([1, 29, 57], [1, 29, 57]),
        (None, None),
        ([0, 3, 31], [0, 3, 31]),
    ],
)
def test_the_plugin_translates_only_ids_that_hold_minus_1(ids, boundaries):
    assert embedding_plugin.translate(ids) == boundaries


def test_the_plugin_hands_sglang_boundaries_that_it_takes_as_they_are():
    model = SimpleNamespace()
    embedding_plugin.set_layers(lambda m, ids: setattr(m, "got", ids), model, [-1, 2, 30])
    assert model.got == [0, 3, 31]
    with pytest.raises(WiringError, match="boundary 1 cannot come first"):
        embedding_plugin.set_layers(lambda m, ids: None, model, [0, -1, 30])


def test_the_plugin_refuses_another_release(monkeypatch):
    monkeypatch.setattr(embedding_plugin, "version", lambda _: "0.5.9")
    with pytest.raises(WiringError, match="expected 0.5.23, found 0.5.9"):
        embedding_plugin.register()


FORK = multiprocessing.get_context("fork")


def over_and_over(draft, folder, seconds):
    """Make the copy and remove it, until killed or the time is over; the exit status tells an error that is none."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for form in (Form.CONFIG, Form.PLUGIN):
            draft_copy.apply(draft, cure(form), folder, CASE)
        try:
            draft_copy.undo(folder)
        except WiringError as error:  # the other one was faster
            assert "left alone" in str(error), error


def whole(folder):
    names = {p.name for p in folder.iterdir()}
    return names == {"config.json", "model.safetensors", MARKER} and read_copy_record(folder)


def test_killed_at_any_moment_a_copy_is_whole_or_not_there_and_the_next_call_tidies_up(draft, tmp_path):
    generator, folder, parents = random.Random(7), tmp_path / "cured", []
    at_work = 0  # kills that hit a call at work
    while len(parents) < 20 or not at_work:
        assert len(parents) < 400, "no kill hit a call at work"
        child = FORK.Process(target=over_and_over, args=(draft, folder, 60))
        child.start()
        time.sleep(generator.uniform(0.005, 0.06) * (1 + len(parents) // 20))  # a busy machine starts it late
        child.kill()
        child.join(30)
        assert not folder.exists() or whole(folder)
        parents.append({p.name for p in tmp_path.iterdir()})
        at_work += any(".tmp" in name for name in parents[-1])
        draft_copy.apply(draft, cure(), folder, CASE)
        assert {p.name for p in tmp_path.iterdir()} == {"draft", "cured"} and whole(folder)


def test_two_processes_at_one_copy_leave_it_whole_or_not_there(draft, tmp_path):
    folder = tmp_path / "cured"
    both = [FORK.Process(target=over_and_over, args=(draft, folder, 2)) for _ in range(2)]
    for child in both:
        child.start()
    for child in both:
        child.join(60)
    assert [child.exitcode for child in both] == [0, 0]
    assert not folder.exists() or whole(folder)
    assert {p.name for p in tmp_path.iterdir()} <= {"draft", "cured"}


def test_a_folder_that_cannot_be_written_is_told(draft, tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(WiringError, match="cannot be written"):
        draft_copy.apply(draft, cure(), tmp_path / "file" / "cured", CASE)

"""Fixes on copies: previewed, applied, verified, removed; the user's draft and SGLang are never written."""

import hashlib
import json
import multiprocessing
import random
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from stand_in import FILES, contents, know_the_stand_in, simple_change, write_tree

from wiring.checkpoints.copy_record import MARKER, read_copy_record
from wiring.errors import WiringError
from wiring.patch import copies, embedding_plugin
from wiring.patch.copies import applied_fix, apply_fix, config_diff, copy_package, remove_copy, verify_copy
from wiring.patch.fix_kinds import FixKind, with_ids
from wiring.patch.plan import plan_fixes
from wiring.patch.source import GRAPH_SITES, check_sites, find_tree, prepare

TARGET = {"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61}
AS_SERVED = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 31, 59], "use_aux_hidden_state": True},
}
TRAINED = (0, 3, 31)
MODEL = "srt/models/deepseek_v2.py"


@pytest.fixture
def draft(tmp_path):
    folder = tmp_path / "draft"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(AS_SERVED))
    (folder / "model.safetensors").write_bytes(b"tensors")
    return folder


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A package with code at every site of the source edits."""
    know_the_stand_in(monkeypatch)
    return write_tree(tmp_path / "site-packages", version="0.5.23")


def fix(form=FixKind.CONFIG, tree=None):
    return plan_fixes("0.5.23", TARGET, AS_SERVED, TRAINED, tree=tree).fix(form)


def everything(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def test_only_the_ids_change_and_the_original_dict_is_kept():
    changed = with_ids(AS_SERVED, (0, 3, 31))
    assert changed["eagle_config"] == {"eagle_aux_hidden_state_layer_ids": [0, 3, 31], "use_aux_hidden_state": True}
    assert AS_SERVED["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [3, 31, 59]


def test_the_diff_shows_the_change_and_writes_nothing(draft, tmp_path):
    before = everything(draft)
    text = config_diff(draft, fix(FixKind.PLUGIN))
    removed = [line[1:].strip(" ,") for line in text.splitlines() if line.startswith("-   ")]
    added = [line[1:].strip(" ,") for line in text.splitlines() if line.startswith("+   ")]
    assert removed == ["3", "31", "59"] and added == ["-1", "2", "30"]
    assert "+ WIRING_EMBEDDING_ID=1" in text
    assert everything(draft) == before and [p.name for p in tmp_path.iterdir()] == ["draft"]


def test_a_copy_of_the_draft_is_made_replaced_and_removed(draft, tmp_path):
    before, folder = everything(draft), tmp_path / "fixed"
    for form, ids in ((FixKind.CONFIG, (0, 3, 31)), (FixKind.PLUGIN, (-1, 2, 30))):
        made = apply_fix(draft, fix(form), folder, TRAINED)
        assert (made.draft, made.sglang) == (folder, None)
        assert json.loads((folder / "config.json").read_text()) == with_ids(AS_SERVED, ids)
        assert (folder / "model.safetensors").read_bytes() == b"tensors"
    assert made.start_line.startswith("WIRING_EMBEDDING_ID=1 python -m sglang.launch_server")
    remove_copy(folder)
    assert [p.name for p in tmp_path.iterdir()] == ["draft"] and everything(draft) == before


def test_the_source_fix_is_a_copy_of_the_package_with_all_other_files_linked(draft, tree, tmp_path):
    before, folder = contents(tree.package), tmp_path / "fixed"
    made = apply_fix(draft, fix(FixKind.SOURCE, tree), folder, TRAINED, tree)
    assert (made.draft, made.sglang) == (folder / "draft", folder) and contents(tree.package) == before
    assert f"PYTHONPATH={folder}" in made.start_line and len(made.checks) == 5
    assert all(check.stands for check in made.checks)
    assert not any(check.stands for check in check_sites(tree, fix(FixKind.SOURCE, tree).edits))
    package = folder / "sglang"
    written = {path for path in before if not (package / path).is_symlink()}
    assert written == set(FILES) and set(contents(package)) == set(before)
    assert not any(path.is_symlink() for path in package.rglob("*") if path.is_dir())
    assert "-1 in layer_ids" in (package / MODEL).read_text()
    # Python imports the copy, and its byte code is written there.
    read = "import sglang.version; print(sglang.version.__file__, sglang.version.__cached__)"
    ran = subprocess.run([sys.executable, "-c", read], env={"PYTHONPATH": str(folder)}, capture_output=True, text=True)
    assert all(Path(word).is_relative_to(package) for word in ran.stdout.split()), ran.stderr
    remove_copy(folder)
    assert not folder.exists() and contents(tree.package) == before


def test_links_and_byte_code_of_the_package(tree, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "kernels").mkdir(parents=True)
    tree.file(MODEL).rename(elsewhere / "model.py")
    (tree.package / MODEL).symlink_to(elsewhere / "model.py")
    (tree.package / "kernels").symlink_to(elsewhere / "kernels")
    (tree.package / "srt" / "__pycache__").mkdir()
    (tree.package / "srt" / "__pycache__" / "old.pyc").write_bytes(b"")
    change = simple_change(tree)
    before = (elsewhere / "model.py").read_bytes()
    copy_package(change, tmp_path / "copy" / "sglang")
    copy = tmp_path / "copy" / "sglang"
    assert not (copy / MODEL).is_symlink() and (copy / MODEL).read_bytes() == before + b"patched = True\n"
    assert (elsewhere / "model.py").read_bytes() == before
    assert (copy / "kernels").resolve() == elsewhere / "kernels" and not list(copy.rglob("*.pyc"))


def test_an_edited_file_in_a_linked_folder_is_refused(draft, tree, tmp_path):
    planned, elsewhere = fix(FixKind.SOURCE, tree), tmp_path / "models"
    (tree.package / MODEL).parent.rename(elsewhere)
    (tree.package / MODEL).parent.symlink_to(elsewhere)
    before = contents(elsewhere)
    with pytest.raises(WiringError) as error:
        apply_fix(draft, planned, tmp_path / "fixed", TRAINED, tree)
    assert error.value.code == "copy-incomplete" and MODEL in error.value.found
    assert contents(elsewhere) == before and not (tmp_path / "fixed").exists()


def test_the_start_line_quotes_its_paths(draft, tree, tmp_path):
    made = apply_fix(draft, fix(FixKind.SOURCE, tree), tmp_path / "two words", TRAINED, tree)
    words = shlex.split(made.start_line)
    assert words[0] == f"PYTHONPATH={made.sglang}" and words[-2:] == [str(made.draft), "..."]


@pytest.mark.parametrize("mode", [0o644, 0o755, 0o444])
def test_the_mode_of_a_written_file_is_kept(tree, tmp_path, mode):
    tree.file(MODEL).chmod(mode)
    copy_package(simple_change(tree), tmp_path / "copy" / "sglang")
    assert (tmp_path / "copy" / "sglang" / MODEL).stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("tool", [("git", "apply"), ("patch", "-p1", "-s")])
def test_the_patch_is_taken_by_both_tools(tree, tmp_path, tool):
    (tree.package / MODEL).write_text(tree.file(MODEL).read_text() + "# no line feed at the end")
    change = simple_change(tree, "\npatched = True")
    copy = tmp_path / "copy" / "sglang"
    for path in FILES:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_bytes(tree.file(path).read_bytes())
    subprocess.run(tool, input=change.patch(), text=True, cwd=copy.parent, check=True, timeout=60)
    assert {path: (copy / path).read_bytes() for path in FILES} == {file.path: file.after for file in change.files}


def test_the_graph_edits_alone_leave_the_model(tree):
    change = prepare(tree, "deepseek_v2", GRAPH_SITES)
    assert [edit.site.name for edit in change.edits] == ["graph", "order", "dummy"]
    assert {file.path for file in change.files} == set(FILES) - {MODEL}


def test_a_fix_is_removed_with_its_block_also_after_an_error(draft, tree, tmp_path):
    folder = tmp_path / "fixed"
    with pytest.raises(KeyboardInterrupt), applied_fix(draft, fix(FixKind.SOURCE, tree), folder, TRAINED, tree) as made:
        assert made.draft.is_dir() and (folder / "sglang").is_dir()
        raise KeyboardInterrupt
    assert not folder.exists()


def test_folders_of_others_are_not_touched(draft, tree, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("keep")
    calls = {
        "not-our-copy": [
            lambda: apply_fix(draft, fix(), mine, TRAINED),
            lambda: apply_fix(draft, fix(FixKind.SOURCE, tree), mine, TRAINED, tree),
            lambda: remove_copy(mine),
            lambda: remove_copy(draft),
            lambda: verify_copy(draft, "0.5.23", TARGET),
        ],
        "copy-inside-draft": [lambda: apply_fix(draft, fix(), draft / "fixed", TRAINED)],
    }
    for code, several in calls.items():
        for call in several:
            with pytest.raises(WiringError) as error:
                call()
            assert error.value.code == code
    assert everything(mine) == {"notes.txt": hashlib.sha256(b"keep").hexdigest()} and len(everything(draft)) == 2


@pytest.mark.parametrize("form", [FixKind.CONFIG, FixKind.SOURCE])
def test_a_failed_apply_leaves_nothing(draft, tree, tmp_path, monkeypatch, form):
    planned = fix(form, tree)
    monkeypatch.setattr(copies, "write_json", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(WiringError) as error:
        apply_fix(draft, planned, tmp_path / "fixed", TRAINED, tree)
    assert error.value.code == "copy-not-writable" and error.value.found == "No space left on device"
    assert {p.name for p in tmp_path.iterdir()} == {"draft", "site-packages"}


def test_a_folder_that_cannot_be_written_is_refused(draft, tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(WiringError) as error:
        apply_fix(draft, fix(), tmp_path / "file" / "fixed", TRAINED)
    assert error.value.code == "copy-not-writable"


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


def test_the_plugin_gives_sglang_boundaries_that_it_takes_unchanged():
    model = SimpleNamespace()
    embedding_plugin.set_layers(lambda m, ids: setattr(m, "got", ids), model, [-1, 2, 30])
    assert model.got == [0, 3, 31]
    with pytest.raises(WiringError) as error:
        embedding_plugin.set_layers(lambda m, ids: None, model, [0, -1, 30])
    assert error.value.code == "embedding-not-first"


def test_the_plugin_refuses_another_release(monkeypatch):
    monkeypatch.setattr(embedding_plugin, "version", lambda _: "0.5.9")
    with pytest.raises(WiringError) as error:
        embedding_plugin.register()
    assert (error.value.code, error.value.expected, error.value.found) == ("sglang-unsupported", "0.5.23", "0.5.9")


FORK = multiprocessing.get_context("fork")


def over_and_over(draft, folder, seconds=60.0):
    """Make the copy and remove it, until killed or the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for form in (FixKind.CONFIG, FixKind.PLUGIN):
            apply_fix(draft, fix(form), folder, TRAINED)
        try:
            remove_copy(folder)
        except WiringError as error:  # the other process removed it first
            assert error.code == "not-our-copy"


def whole(folder):
    names = {p.name for p in folder.iterdir()}
    return names == {"config.json", "model.safetensors", MARKER} and read_copy_record(folder)


def test_killed_at_any_moment_a_copy_is_whole_or_absent_and_the_next_call_tidies_up(draft, tmp_path):
    generator, folder, left = random.Random(7), tmp_path / "fixed", []
    while len(left) < 20 or not any(left):  # until a kill hit a call at work
        assert len(left) < 400
        child = FORK.Process(target=over_and_over, args=(draft, folder))
        child.start()
        time.sleep(generator.uniform(0.005, 0.06) * (1 + len(left) // 20))  # a busy machine starts it late
        child.kill()
        child.join(30)
        assert not folder.exists() or whole(folder)
        left.append(any(path.name.endswith(".tmp") for path in tmp_path.iterdir()))
        apply_fix(draft, fix(), folder, TRAINED)
        remove_copy(folder)
        assert {p.name for p in tmp_path.iterdir()} == {"draft"}


def test_two_processes_at_one_copy_leave_it_whole_or_absent(draft, tmp_path):
    folder = tmp_path / "fixed"
    both = [FORK.Process(target=over_and_over, args=(draft, folder, 2)) for _ in range(2)]
    for child in both:
        child.start()
    for child in both:
        child.join(60)
    assert [child.exitcode for child in both] == [0, 0]
    assert not folder.exists() or whole(folder)
    assert {p.name for p in tmp_path.iterdir()} <= {"draft", "fixed"}


def test_the_installed_package_is_found_for_a_source_fix():
    planned = plan_fixes("0.5.23", TARGET, AS_SERVED, TRAINED, tree=find_tree()).fix("source")
    assert [file.path for file in copies.source_change(planned, find_tree()).files] == [MODEL]

"""Apply, undo and status: all files or none, byte for byte, and a clear word where somebody else was at the files."""

import fcntl
import importlib.util
import json
import multiprocessing
import os
import py_compile
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stand_in import FILES, contents, know_the_stand_in, simple_change, write_tree

from wiring.errors import WiringError
from wiring.patch.source import GRAPH_SITES, Standing, apply, prepare, recover, status, undo
from wiring.patch.source import source_change as change_module
from wiring.patch.source.patch_state import FOLDER, State, replace_source

MODEL = "srt/models/deepseek_v2.py"


@pytest.fixture
def tree(tmp_path):
    return write_tree(tmp_path)


def test_undo_restores_every_byte_and_leaves_nothing_behind(tree, monkeypatch):
    know_the_stand_in(monkeypatch)
    before = contents(tree.package)
    change = prepare(tree, "DeepseekV3ForCausalLM", {"wanted": [0, 3, 31]})
    assert contents(tree.package) == before  # a preview writes nothing
    outcome = apply(change)
    assert set(outcome.changed) == set(FILES) and status(tree).standing is Standing.APPLIED
    assert status(tree).record["plan"] == {"family": "DeepseekV3ForCausalLM", "wanted": [0, 3, 31]}
    assert "-1 in layer_ids" in tree.file(MODEL).read_text()
    assert set(undo(tree).changed) == set(FILES)
    assert contents(tree.package) == before and not (tree.package / FOLDER).exists()
    assert status(tree).standing is Standing.NONE


def test_the_second_disease_alone_leaves_the_model_as_it_is(tree, monkeypatch):
    know_the_stand_in(monkeypatch)
    model = tree.file(MODEL).read_bytes()
    change = prepare(tree, "deepseek_v2", sites=GRAPH_SITES)
    assert [edit.site.name for edit in change.edits] == ["graph", "order", "dummy"]
    assert set(apply(change).changed) == set(FILES) - {MODEL} and tree.file(MODEL).read_bytes() == model
    # the rest can follow, and one undo takes all of it back
    assert apply(prepare(tree, "deepseek_v2")).changed == (MODEL,)
    undo(tree)
    assert tree.file(MODEL).read_bytes() == model


def test_a_package_that_vanished_is_told(tree):
    change = simple_change(tree)
    shutil.rmtree(tree.package)
    for call in (lambda: apply(change), State(tree).locked().__enter__):
        with pytest.raises(WiringError, match="cannot be written"):
            call()


def test_applied_twice_is_applied_once_and_undone_twice_is_undone_once(tree):
    before = contents(tree.package)
    apply(simple_change(tree))
    after = contents(tree.package)
    assert simple_change(tree).nothing_to_do and simple_change(tree).diff() == ""
    assert apply(simple_change(tree)).changed == () and contents(tree.package) == after
    undo(tree)
    assert undo(tree).changed == () and contents(tree.package) == before


def test_the_diff_is_what_apply_writes(tree, tmp_path):
    change = simple_change(tree)
    originals = {path: tree.file(path).read_bytes() for path in FILES}
    apply(change)
    copy = tmp_path / "copy" / "sglang"
    for path, data in originals.items():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_bytes(data)
    diff = change.diff().replace(" (as it is)", "").replace(" (patched)", "")
    subprocess.run(["patch", "-p0", "-s"], input=diff, text=True, cwd=copy.parent, check=True, timeout=60)
    assert all((copy / path).read_bytes() == tree.file(path).read_bytes() for path in FILES)


def test_a_second_patch_over_the_first_is_undone_to_the_first_original(tree):
    before = contents(tree.package)
    apply(simple_change(tree))
    apply(simple_change(tree, "second = True\n"))
    assert tree.file(MODEL).read_text().endswith("patched = True\nsecond = True\n")
    undo(tree)
    assert contents(tree.package) == before


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o755, 0o444])
def test_the_mode_of_a_file_stays(tree, mode):
    tree.file(MODEL).chmod(mode)
    apply(simple_change(tree))
    assert tree.file(MODEL).stat().st_mode & 0o7777 == mode
    undo(tree)
    assert tree.file(MODEL).stat().st_mode & 0o7777 == mode


def test_a_symbolic_link_stays_and_its_file_is_edited(tree, tmp_path):
    real = tmp_path / "elsewhere" / "model.py"
    real.parent.mkdir()
    tree.file(MODEL).rename(real)
    (tree.package / MODEL).symlink_to(real)
    original = real.read_bytes()
    apply(simple_change(tree))
    assert (tree.package / MODEL).is_symlink() and real.read_bytes() == original + b"patched = True\n"
    assert str(real) in json.dumps(status(tree).record)
    undo(tree)
    assert (tree.package / MODEL).is_symlink() and real.read_bytes() == original


def test_a_hard_link_into_a_package_cache_leaves_the_cache_alone(tree, tmp_path):
    cached = tmp_path / "cached.py"
    os.link(tree.file(MODEL), cached)
    original = cached.read_bytes()
    apply(simple_change(tree))
    assert cached.read_bytes() == original != tree.file(MODEL).read_bytes()


def test_a_file_that_was_changed_since_is_shown_and_nothing_is_undone(tree):
    apply(simple_change(tree))
    tree.file(MODEL).write_text(tree.file(MODEL).read_text() + "mine = 1\n")
    after = contents(tree.package)
    assert status(tree).standing is Standing.CHANGED and status(tree).files[MODEL] == "other"
    for call in (lambda: undo(tree), lambda: apply(simple_change(tree, "more = 1\n"))):
        with pytest.raises(WiringError, match=r"changed a patched file(?s:.*)\+mine = 1"):
            call()
        assert contents(tree.package) == after


def test_a_file_that_is_gone_is_told(tree):
    apply(simple_change(tree))
    tree.file(MODEL).unlink()
    with pytest.raises(WiringError, match="changed a patched file"):
        undo(tree)


def test_a_file_that_was_changed_after_the_preview_is_not_overwritten(tree):
    change = simple_change(tree)
    tree.file(MODEL).write_text("mine = 1\n")
    before = contents(tree.package)
    with pytest.raises(WiringError, match="changed after the change was prepared"):
        apply(change)
    assert {k: v for k, v in contents(tree.package).items() if FOLDER not in k} == before


@pytest.mark.parametrize("version", ["0.5.7", "0.5.9"])
def test_sglang_installed_again_over_the_patch_is_not_taken_for_it(tree, version):
    apply(simple_change(tree))
    again = write_tree(
        tree.package.parent, {p: t + ("" if version == "0.5.7" else "# new\n") for p, t in FILES.items()}, version
    )
    fresh = contents(tree.package)
    assert status(again).standing is Standing.REPLACED
    assert undo(again).changed == ()
    assert {k: v for k, v in fresh.items() if FOLDER not in k} == contents(tree.package)
    apply(simple_change(again))
    assert status(again).record["sglang"] == version


def test_a_spoilt_original_is_refused_before_anything_is_restored(tree):
    apply(simple_change(tree))
    for kept in (tree.package / FOLDER / "contents").iterdir():
        kept.write_bytes(kept.read_bytes()[:-1])
    after = contents(tree.package)
    with pytest.raises(WiringError, match="gone or changed"):
        undo(tree)
    assert {k: v for k, v in contents(tree.package).items() if FOLDER not in k} == {
        k: v for k, v in after.items() if FOLDER not in k
    }


def test_an_error_of_the_disk_in_the_middle_rolls_everything_back(tree, monkeypatch):
    before = contents(tree.package)
    change = simple_change(tree)
    calls = []

    def full(path, data):
        calls.append(path)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return replace_source(path, data)

    monkeypatch.setattr(change_module, "replace_source", full)
    with pytest.raises(WiringError, match="nothing was changed.*No space left"):
        apply(change)
    assert contents(tree.package) == before and status(tree).standing is Standing.NONE


def as_another_user(work) -> str:
    """What `work` raises where this process may not write: in a child, which root gives the rights of nobody."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            work()
        except WiringError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as told:
        return told.read()


@pytest.mark.parametrize("only", [None, "srt/models"])
def test_a_read_only_package_is_refused_before_anything_is_written(tree, only):
    folders = [tree.package, *(path for path in tree.package.rglob("*") if path.is_dir())]
    change, before = simple_change(tree), contents(tree.package)
    for parent in list(tree.package.parents)[:3]:
        parent.chmod(0o755)
    for folder in folders:
        closed = only is None or folder == tree.package / only
        folder.chmod(0o555 if closed else 0o777)
    told = as_another_user(lambda: apply(change))
    for folder in folders:
        folder.chmod(0o755)
    assert "cannot be written, so nothing was changed" in told and "PYTHONPATH" in told
    assert contents(tree.package) == before


def hold(package, ready, release):
    with State(package).locked():
        ready.set()
        release.wait(30)


def test_a_second_process_waits_and_then_is_told_who_is_at_it(tree, monkeypatch):
    context = multiprocessing.get_context("fork")
    ready, release = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tree, ready, release))
    other.start()
    try:
        assert ready.wait(30)
        with pytest.raises(WiringError, match=f"another process is patching.*process {other.pid}"):
            with State(tree).locked(wait_seconds=0.2):
                pass
        threading.Timer(0.3, release.set).start()
        assert len(apply(simple_change(tree)).changed) == 3  # waited
    finally:
        release.set()
        other.join(30)
    assert other.exitcode == 0 and status(tree).standing is Standing.APPLIED


def worker(tree, order, barrier, rounds):
    barrier.wait(30)
    for _ in range(rounds):
        try:
            order(tree)
        except WiringError as error:
            assert "changed after the change was prepared" in str(error), error


def test_two_processes_at_once_leave_all_files_old_or_all_new(tree, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # on a busy disk one would wait too long for the other
    before = {path: tree.file(path).read_bytes() for path in FILES}
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    jobs = [lambda t: apply(simple_change(t)), undo]
    processes = [context.Process(target=worker, args=(tree, job, barrier, 15)) for job in jobs]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    after = {path: tree.file(path).read_bytes() for path in FILES}
    assert after in (before, {path: data + b"patched = True\n" for path, data in before.items()})
    assert status(tree).standing is (Standing.NONE if after == before else Standing.APPLIED)


def value_of(module: Path) -> int:
    """What a fresh Python gets from importing a module, byte code and all."""
    code = f"import sys; sys.path.insert(0, {str(module.parent)!r}); import {module.stem} as m; print(m.VALUE)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return int(ran.stdout)


@pytest.mark.parametrize("mode", list(py_compile.PycInvalidationMode))
def test_byte_code_of_the_old_text_is_never_used(tmp_path, mode):
    module = tmp_path / "answer.py"
    module.write_text("VALUE = 1\n")
    py_compile.compile(str(module), invalidation_mode=mode)
    assert value_of(module) == 1
    replace_source(module, b"VALUE = 2\n")
    assert value_of(module) == 2


def test_same_size_in_the_same_second_is_another_file_to_python(tmp_path):
    """Byte code that a running Python writes late, after ours was removed, must not pass for the new text either."""
    module = tmp_path / "answer.py"
    module.write_text("VALUE = 1\n")
    second = int(time.time()) + 1
    os.utime(module, (second, second))
    late = Path(py_compile.compile(str(module))).read_bytes()
    while time.time() < second:
        time.sleep(0.01)
    replace_source(module, b"VALUE = 2\n")
    cache = Path(importlib.util.cache_from_source(str(module)))
    cache.parent.mkdir(exist_ok=True)
    cache.write_bytes(late)
    assert int(module.stat().st_mtime) != second
    assert value_of(module) == 2


def test_two_writers_cannot_share_a_lock_file_that_was_removed(tree, monkeypatch):
    """The lock goes with the folder: whoever opened the old file just before must take the new one."""
    path, real, calls = State(tree).folder / "lock", fcntl.flock, []

    def removed_meanwhile(handle, how):
        calls.append(handle)
        if len(calls) == 1:
            path.unlink()
        return real(handle, how)

    monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
    with State(tree).locked():
        handle = os.open(path, os.O_RDWR | os.O_CREAT)
        with pytest.raises(BlockingIOError):
            real(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)
    assert len(calls) == 2


steps = st.lists(st.sampled_from(["apply", "more", "undo", "recover", "status", "touch", "untouch"]), max_size=8)


@settings(max_examples=25, deadline=None)
@given(steps)
def test_any_order_of_calls_ends_in_bytes_that_are_known(tmp_path_factory, calls):
    """The model: text = original + lines of the patches that stand + a line of somebody else."""
    tree = write_tree(tmp_path_factory.mktemp("order"))
    originals = {path: tree.file(path).read_text() for path in FILES}
    added, stranger = "", ""
    lines = {"apply": "patched = True\n", "more": "more = True\n"}
    for call in calls:
        if call in lines:
            change = simple_change(tree, lines[call])
            if stranger and added:
                with pytest.raises(WiringError):
                    apply(change)
            elif not stranger:
                apply(change)
                added += "" if added.endswith(lines[call]) else lines[call]
        elif call == "undo":
            if stranger and added:
                with pytest.raises(WiringError):
                    undo(tree)
            else:
                undo(tree)
                added = "" if not stranger else added
        elif call == "touch" and not stranger:
            stranger = "# somebody else\n"
            tree.file(MODEL).write_text(originals[MODEL] + added + stranger)
        elif call == "untouch":
            stranger = ""
            tree.file(MODEL).write_text(originals[MODEL] + added)
        else:
            (recover if call == "recover" else status)(tree)
        for path, text in originals.items():
            assert tree.file(path).read_text() == text + added + (stranger if path == MODEL else "")


def test_a_change_of_nothing_is_nothing(tree):
    empty = replace(simple_change(tree), edits=(), files=())
    assert apply(empty).changed == () and empty.diff() == "" and not (tree.package / FOLDER).exists()

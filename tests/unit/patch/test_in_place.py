"""A cure in place for a while: on a copy or on the installed SGLang, undone with the block, taken back after a kill.

The installed SGLang is a stand-in here: a package of three small files in a temporary folder.
"""

import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
from stand_in import FILES, contents, know_the_stand_in, write_tree

from wiring.errors import WiringError
from wiring.patch.fix_kinds import ApplyTo, Form
from wiring.patch.plan import plan_cures, source_change
from wiring.patch.source import Standing, apply, status
from wiring.patch.source import source_change as change_module
from wiring.patch.source.for_a_while import edited, mark, take_back
from wiring.workbook import fixes as in_place
from wiring.workbook.case import open_case

TINY = Path(__file__).parents[3] / "data" / "tiny"
CONFIGS = [json.loads((TINY / part / "config.json").read_text()) for part in ("target", "draft")]
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """The installed SGLang of these tests."""
    know_the_stand_in(monkeypatch)
    tree = write_tree(tmp_path / "site-packages", version="0.5.23")
    monkeypatch.setattr(in_place, "find_tree", lambda: tree)
    return tree


@pytest.fixture
def case(tmp_path):
    return open_case(profile="cpu-tiny", run=str(tmp_path / "run"), measure="recorded")


def cure(tree, form=Form.SOURCE):
    plan = plan_cures("0.5.23", *CONFIGS, (0, 3, 31), tree=tree)
    return next(cure for cure in plan.cures if cure.form is form)


def patched(tree):
    return {path for path in FILES if tree.file(path).read_text() != FILES[path]}


def test_by_default_a_copy_is_edited_and_the_installed_sglang_is_not(tree, case):
    before = contents(tree.package)
    with in_place.applied(case, cure(tree)) as made:
        assert contents(tree.package) == before
        assert "-1 in layer_ids" in (made.sglang / "sglang" / "srt/models/deepseek_v2.py").read_text()
        assert made.checks and all(check.stands for check in made.checks)
        assert set(made.copies) == {made.draft, made.sglang} and all(folder.is_dir() for folder in made.copies)
    assert not any(folder.exists() for folder in made.copies) and contents(tree.package) == before


def test_on_the_installed_sglang_it_stands_for_the_block_and_no_longer(tree, case):
    before, digests = contents(tree.package), in_place.digests(case, [cure(tree)])
    with in_place.applied(case, cure(tree), ApplyTo.INSTALLED) as made:
        assert patched(tree) == set(FILES) and status(tree).standing is Standing.APPLIED
        assert made.sglang == tree.package.parent and made.copies == (made.draft,)
        assert made.checks and all(check.stands for check in made.checks)
        assert in_place.digests(case, [cure(tree)]) != digests
    assert contents(tree.package) == before and not made.draft.exists()
    assert in_place.digests(case, [cure(tree)]) == digests


@pytest.mark.parametrize("form", [Form.CONFIG, Form.PLUGIN])
def test_other_forms_leave_the_installed_sglang_alone_whatever_is_asked(tree, case, form):
    before = contents(tree.package)
    with in_place.applied(case, cure(tree, form), ApplyTo.INSTALLED) as made:
        assert contents(tree.package) == before and made.sglang is None
    assert not made.draft.exists()


@pytest.mark.parametrize("to", ApplyTo)
def test_an_error_in_the_block_undoes_it_too(tree, case, to):
    before = contents(tree.package)
    with pytest.raises(KeyboardInterrupt), in_place.applied(case, cure(tree), to):
        raise KeyboardInterrupt
    assert contents(tree.package) == before and not list((case.folder / "scratch").iterdir())


def test_a_patch_that_somebody_applied_to_stay_is_not_undone(tree, case):
    apply(source_change(cure(tree), tree))
    before = contents(tree.package)
    with pytest.raises(WiringError, match="carries a patch already.*wiring patch undo"):
        with in_place.applied(case, cure(tree), ApplyTo.INSTALLED):
            pass
    assert take_back(tree) is False and contents(tree.package) == before
    with in_place.applied(case, cure(tree)) as made:  # a copy of it needs no further edit
        assert all(check.stands for check in made.checks)
    assert contents(tree.package) == before


def test_a_preview_writes_nothing(tree, case):
    before = contents(tree.package)
    text = in_place.preview(case, cure(tree))
    assert "config.json (source)" in text and "+++ sglang/srt/models/deepseek_v2.py (patched)" in text
    assert contents(tree.package) == before and not (case.folder / "scratch").exists()


def hold(tree, case, ready):
    with in_place.applied(case, cure(tree), ApplyTo.INSTALLED):
        ready.set()
        signal.pause()


def test_what_a_killed_notebook_left_is_taken_back_by_the_next(tree, case):
    before, ready = contents(tree.package), FORK.Event()
    other = FORK.Process(target=hold, args=(tree, case, ready))
    other.start()
    try:
        assert ready.wait(60)
        for call in (lambda: in_place.plan_for(case, *CONFIGS), lambda: take_back(tree)):
            with pytest.raises(WiringError, match=f"edited for a while.*process {other.pid}, for the run"):
                call()
    finally:
        other.kill()
        other.join(30)
    assert patched(tree) == set(FILES)
    plan = in_place.plan_for(case, *CONFIGS)
    assert contents(tree.package) == before and [one.form for one in plan.cures] == list(Form)
    with in_place.applied(case, cure(tree), ApplyTo.INSTALLED):
        assert patched(tree) == set(FILES)
    assert contents(tree.package) == before


def test_a_number_that_another_process_has_now_does_not_protect_it(tree):
    before = contents(tree.package)
    stale = mark("a test")
    stale["for_a_while"]["started"] -= 1000.0  # our number is in use, but by a process that began at another time
    apply(source_change(cure(tree), tree, stale))
    assert take_back(tree) is True and contents(tree.package) == before


def die_at(call, tree, made):
    """In a child: a block whose `call`-th replacement of a file ends the process, as a kill would."""
    real, calls = change_module.replace_source, []

    def replace_source(path, data):
        calls.append(path)
        if len(calls) == call:
            os._exit(9)
        real(path, data)

    change_module.replace_source = replace_source
    with edited(source_change(made, tree, mark("a test"))):
        pass
    os._exit(0)


@pytest.mark.parametrize("call", range(1, 2 * len(FILES) + 2))
def test_killed_at_any_file_it_is_taken_back(tree, call):
    """Three files are replaced going in and three going out; at the seventh call nothing is killed."""
    before, made = contents(tree.package), cure(tree)
    child = FORK.Process(target=die_at, args=(call, tree, made))
    child.start()
    child.join(60)
    assert child.exitcode == (9 if call <= 2 * len(FILES) else 0)
    take_back(tree)
    assert contents(tree.package) == before and status(tree).standing is Standing.NONE


def test_the_word_is_held_against_the_two_that_there_are():
    assert [ApplyTo.parse(word) for word in ("scratch", "installed")] == list(ApplyTo)
    for word in ("instaled", "", "Installed"):
        with pytest.raises(WiringError, match="apply_to: .*expected scratch or installed, found"):
            ApplyTo.parse(word)

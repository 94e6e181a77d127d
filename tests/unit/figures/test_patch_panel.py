"""The patch panel and its session, with a package of three small files in place of the installed SGLang."""

import html
import json
import re
from pathlib import Path

import ipywidgets
import pytest
from panel_parts import by_description
from stand_in import FILES, contents, know_the_stand_in, write_tree

from wiring.errors import WiringError
from wiring.figures import PatchSession, patch_panel
from wiring.figures.fragments import side_by_side
from wiring.patch.fix_kinds import FixKind
from wiring.patch.plan import plan_fixes
from wiring.workbook.case import open_case

TINY = Path(__file__).parents[3] / "data" / "tiny"
CONFIGS = [json.loads((TINY / part / "config.json").read_text()) for part in ("target", "draft")]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Return the SGLang of these tests."""
    know_the_stand_in(monkeypatch)
    return write_tree(tmp_path / "site-packages", version="0.5.23")


@pytest.fixture
def session(tree, tmp_path):
    case = open_case(profile="cpu-tiny", run=str(tmp_path / "run"), measure="recorded")
    return PatchSession(case, plan_fixes("0.5.23", *CONFIGS, (0, 3, 31), tree=tree), tree)


def copies(session):
    return sorted(path.name for path in session.case.scratch("panel").glob("*"))


def refused(action) -> str:
    with pytest.raises(WiringError) as error:
        action()
    return error.value.code


@pytest.mark.parametrize("outside", [False, True], ids=["run folder", "outside"])
@pytest.mark.parametrize("form", FixKind)
def test_a_fix_is_applied_to_copies_proved_and_undone(session, tree, tmp_path, form, outside):
    before = contents(tree.package)
    folder = tmp_path / "copies" if outside else session.case.scratch("panel")
    wanted = ["draft", "sglang"] if form is FixKind.SOURCE else [""]
    if outside:
        question = session.question(form, str(folder))
        assert all(str(folder / name) in question for name in wanted) and not folder.exists()
    session.apply(form, str(folder) if outside else "")
    assert session.applied and all((folder / name).is_dir() for name in wanted)
    if form is FixKind.SOURCE:
        assert all((folder / "sglang" / path).read_text() != text for path, text in FILES.items())
    assert session.prove() and session.steps["prove"].state == "done"
    for part in ('measure = "live"', "--speculative-draft-model-path"):
        assert part in session.steps["prove"].text
    assert refused(lambda: session.apply(FixKind.CONFIG)) == "fix-applied"
    session.undo()
    assert not session.applied and not folder.exists() and contents(tree.package) == before
    assert [session.steps[name].state for name in ("apply", "prove", "undo")] == ["done"] * 3


def test_a_changed_copy_is_not_proved_and_a_changed_original_is_reported(session, tree):
    session.apply(FixKind.SOURCE)
    config = session.case.scratch("panel") / "draft" / "config.json"
    config.write_text(config.read_text().replace("30", "29"))
    assert not session.prove() and session.steps["prove"].state == "failed"
    path = tree.file(next(iter(FILES)))
    path.write_text(path.read_text() + "\n")
    session.undo()
    assert session.steps["undo"].state == "failed"


def test_a_folder_that_cannot_take_the_copies_is_refused(session, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    for folder in (tmp_path / "mine", tmp_path / "mine" / "notes", ""):
        assert refused(lambda folder=folder: session.question(FixKind.CONFIG, str(folder))) == "copy-folder-not-free"
    with pytest.raises(WiringError):
        session.question(FixKind.CONFIG, str(session.case.profile.draft / "copies"))
    assert {refused(session.undo), refused(session.prove)} == {"no-fix-applied"}
    assert (tmp_path / "mine" / "notes").is_file()


def test_the_diff_has_all_of_the_change(session):
    config, source = session.diff(FixKind.CONFIG), session.diff(FixKind.SOURCE)
    assert "config.json" in config and "sglang/" not in config
    assert all(f"sglang/{path}" in source for path in FILES) and "hidden_states.clone()" in source
    assert "WIRING_EMBEDDING_ID=1" in session.diff(FixKind.PLUGIN)


def test_both_sides_of_a_diff_are_the_texts_themselves():
    before = "\n".join(["a", "b <b>", "c", "d", "e"])
    after = "\n".join(["a", "b", "c", "new", "d", "e", "f"])
    rows = re.findall(r"<tr>\s*(<td.*?)</tr>", side_by_side(before, after, "name", context=99), re.S)
    sides = [[html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows]
    assert [text[2:] for number, text, _, _ in sides if number] == before.splitlines()
    assert [text[2:] for _, _, number, text in sides if number] == after.splitlines()
    changed = [(left[:1], right[:1]) for _, left, _, right in sides if left[:1] == "-" or right[:1] == "+"]
    assert changed == [("-", "+"), ("", "+"), ("", "+")]
    assert "no difference" in side_by_side("a\nb", "a\nb", "name")


def parts(box):
    """Return the panel's widgets by description, the box of the question, and a function to the states as text."""
    question, states = box.children[5], box.children[7]
    return by_description(box), question, lambda: re.sub(r"<[^>]+>", " ", states.value)


def test_the_panel_goes_through_apply_prove_and_undo(session):
    box = patch_panel(session)
    found, question, states = parts(box)
    assert question.layout.display == "none" and found["Prove"].disabled and not found["Apply"].disabled
    assert re.search(r"apply\s+not yet", states())
    (output,) = [child for child in box.children if isinstance(child, ipywidgets.Output)]
    found["form"].value = FixKind.SOURCE
    assert "deepseek_v2.py" in output.outputs[0]["data"]["text/html"]
    found["form"].value = FixKind.CONFIG
    found["Apply"].click()
    assert (
        found["Apply"].disabled
        and re.search(r"apply\s+done", states())
        and (session.case.scratch("panel") / "config.json").is_file()
    )
    found["Prove"].click()
    assert re.search(r"prove\s+done", states())
    found["Undo"].click()
    assert re.search(r"undo\s+done", states()) and not session.applied and not found["Apply"].disabled


def test_the_panel_asks_before_it_writes_outside(session, tmp_path):
    box = patch_panel(session)
    found, question, _ = parts(box)
    found["form"].value, found["apply to"].value = FixKind.SOURCE, True
    found["Apply"].click()  # no folder
    assert box.children[6].value and question.layout.display == "none"
    goal = tmp_path / "copies"
    found["copy in"].value = str(goal)
    found["Apply"].click()
    assert question.layout.display == "" and str(goal / "sglang") in question.children[0].value
    found["No"].click()
    assert question.layout.display == "none" and not goal.exists() and not session.applied
    found["Apply"].click()
    assert not goal.exists()
    found["Yes, write these"].click()
    assert {"draft", "sglang"} < {path.name for path in goal.iterdir()} and session.applied
    found["Undo"].click()
    assert not goal.exists() and copies(session) == []


def test_without_a_fix_the_panel_shows_the_advice(session, tree):
    served = {**CONFIGS[1], "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 31]}}
    nothing = PatchSession(session.case, plan_fixes("0.5.23", CONFIGS[0], served, (0, 3, 31), tree=tree), tree)
    (only,) = patch_panel(nothing).children
    assert html.escape(nothing.plan.advice[:20]) in only.value

"""The patch panel, with a package of three small files in the place of the installed SGLang."""

import html
import json
import re
from pathlib import Path

import ipywidgets
import pytest
from panel_parts import by_description
from stand_in import FILES, contents, know_the_stand_in, write_tree

from wiring.errors import WiringError
from wiring.figures import patch_panel
from wiring.figures.fragments import side_by_side
from wiring.figures.patch_session import PatchSession
from wiring.patch.fix_kinds import Form
from wiring.patch.plan import plan_cures
from wiring.patch.source import status
from wiring.workbook.case import open_case

TINY = Path(__file__).parents[3] / "data" / "tiny"
CONFIGS = [json.loads((TINY / part / "config.json").read_text()) for part in ("target", "draft")]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """The installed SGLang of these tests."""
    know_the_stand_in(monkeypatch)
    return write_tree(tmp_path / "site-packages", version="0.5.23")


@pytest.fixture
def bench(tree, tmp_path):
    case = open_case(profile="cpu-tiny", run=str(tmp_path / "run"), measure="recorded")
    return PatchSession(case, plan_cures("0.5.23", *CONFIGS, (0, 3, 31), tree=tree), tree)


def scratch(bench):
    return sorted(path.name for path in (bench.case.folder / "scratch").glob("*"))


@pytest.mark.parametrize("form", Form)
def test_in_the_run_folder_a_cure_is_applied_proved_and_undone(bench, tree, form):
    before = contents(tree.package)
    assert bench.forms == tuple(Form) and bench.steps["plan"].state == "done"
    bench.apply_to_scratch(form)
    assert bench.applied and contents(tree.package) == before and f"panel-draft-{form}" in scratch(bench)
    assert bench.prove() and "MISSING" not in bench.steps["prove"].text and "stands: " in bench.steps["prove"].text
    for part in ('measure = "live"', "--speculative-draft-model-path"):
        assert part in bench.steps["prove"].text
    with pytest.raises(WiringError, match="another cure stands"):
        bench.apply_to_scratch(Form.CONFIG)
    bench.undo()
    assert not bench.applied and scratch(bench) == [] and contents(tree.package) == before
    assert bench.steps["undo"].state == "done" and "byte for byte" in bench.steps["undo"].text
    assert bench.steps["apply"].text == bench.steps["prove"].text == f"{form}: taken back since"


def test_a_copy_that_somebody_changed_is_not_proved(bench):
    bench.apply_to_scratch(Form.CONFIG)
    config = bench.case.folder / "scratch" / "panel-draft-config" / "config.json"
    config.write_text(config.read_text().replace("31", "30"))
    assert not bench.prove()
    assert bench.steps["prove"].state == "failed" and "MISSING: layer ids of the copy" in bench.steps["prove"].text


def test_the_installed_sglang_is_written_only_as_its_question_says(bench, tree, tmp_path):
    before = contents(tree.package)
    question = bench.question(Form.SOURCE, tmp_path / "cured")
    assert set(question.files) == {tmp_path / "cured", *(tree.file(path) for path in FILES)}
    assert all(str(path) in str(question) for path in question.files) and str(question).endswith("Go on?")
    assert contents(tree.package) == before and not (tmp_path / "cured").exists() and not bench.applied
    bench.apply_outside(question)
    changed = {path for path in FILES if tree.file(path).read_text() != FILES[path]}
    assert changed == set(FILES) and (tmp_path / "cured" / "config.json").is_file() and bench.prove()
    bench.undo()
    assert contents(tree.package) == before and status(tree).record is None and not (tmp_path / "cured").exists()


def test_a_place_that_is_not_free_is_refused_before_anything_is_asked(bench, tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(WiringError, match="not a cured copy"):
        bench.question(Form.CONFIG, tmp_path / "mine")
    with pytest.raises(WiringError, match="lie in the draft itself"):
        bench.question(Form.CONFIG, bench.case.profile.draft / "cured")
    with pytest.raises(WiringError, match="expected a folder for it"):
        bench.question(Form.CONFIG)
    with pytest.raises(WiringError, match="nothing is applied"):
        bench.undo()


def test_the_diff_has_all_of_the_change(bench):
    config, source = bench.diff(Form.CONFIG), bench.diff(Form.SOURCE)
    assert "config.json" in config and "sglang/" not in config
    assert all(f"sglang/{path}" in source for path in FILES) and "hidden_states.clone()" in source
    assert "WIRING_EMBEDDING_ID=1" in bench.diff(Form.PLUGIN)


def test_both_sides_of_a_diff_are_the_texts_themselves():
    before = "\n".join(["a", "b <b>", "c", "d", "e"])
    after = "\n".join(["a", "b", "c", "new", "d", "e", "f"])
    rows = re.findall(r"<tr>(<td.*?)</tr>", side_by_side(before, after, "name", context=99))
    sides = [[html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows]
    assert [text[2:] for number, text, _, _ in sides if number] == before.splitlines()
    assert [text[2:] for _, _, number, text in sides if number] == after.splitlines()
    assert [(left[:1], right[:1]) for _, left, _, right in sides if left[:1] == "-" or right[:1] == "+"] == [
        ("-", "+"),
        ("", "+"),
        ("", "+"),
    ]
    assert "no difference" in side_by_side("a\nb", "a\nb", "name")


def parts(box):
    """Widgets of the panel by description, the question's box, and the states as text."""
    question, states = box.children[5], box.children[7]
    return by_description(box), question, lambda: re.sub(r"<[^>]+>", " ", states.value)


def test_the_panel_goes_through_apply_prove_and_undo(bench):
    found, question, states = parts(patch_panel(bench))
    assert question.layout.display == "none" and found["Prove"].disabled and not found["Apply"].disabled
    assert re.search(r"apply\s+not yet", states())
    found["Apply"].click()
    assert found["Apply"].disabled and re.search(r"apply\s+done", states()) and bench.applied
    found["Prove"].click()
    assert re.search(r"prove\s+done", states())
    found["Undo"].click()
    assert re.search(r"undo\s+done", states()) and not bench.applied and not found["Apply"].disabled


def test_the_panel_asks_before_it_writes_outside_and_no_is_no(bench, tree, tmp_path):
    before = contents(tree.package)
    found, question, _ = parts(patch_panel(bench))
    found["form"].value, found["apply to"].value = Form.SOURCE, True
    found["copy in"].value = str(tmp_path / "cured")
    found["Apply"].click()
    assert question.layout.display == "" and "deepseek_v2.py" in question.children[0].value
    assert contents(tree.package) == before and not bench.applied
    found["No"].click()
    assert question.layout.display == "none" and contents(tree.package) == before and not bench.applied
    found["Apply"].click()
    found["Yes, write these"].click()
    assert contents(tree.package) != before and bench.applied
    found["Undo"].click()
    assert contents(tree.package) == before


def test_the_panel_shows_a_refusal_and_another_form_another_diff(bench, tmp_path):
    box = patch_panel(bench)
    found, question, _ = parts(box)
    (output,) = [child for child in box.children if isinstance(child, ipywidgets.Output)]
    before = output.outputs
    found["form"].value = Form.SOURCE
    assert output.outputs != before and "deepseek_v2.py" in output.outputs[0]["data"]["text/html"]
    found["form"].value, found["apply to"].value, found["copy in"].value = Form.CONFIG, True, str(tmp_path)
    found["Apply"].click()
    assert "not a cured copy" in box.children[6].value and question.layout.display == "none"
    assert "Needs no server" in box.children[-1].value


def test_without_a_cure_the_panel_says_why(bench, tree):
    served = {**CONFIGS[1], "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 31]}}
    nothing = PatchSession(bench.case, plan_cures("0.5.23", CONFIGS[0], served, (0, 3, 31), tree=tree), tree)
    assert "nothing to do" in patch_panel(nothing).children[0].value

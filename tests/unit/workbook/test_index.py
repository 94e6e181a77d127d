"""The index: which cases there are, how far each is, why one cannot run here, and links that Lab can open."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from wiring.errors import WiringError
from wiring.figures import open_index
from wiring.workbook.case_index import Overview, cases, markdown, overview, profile_table
from wiring.workbook.profile import PROFILES
from wiring.workbook.run_folder import RunFolder
from wiring.workbook.run_notebooks import WORKBOOK
from wiring.workbook.run_status import StepStatus


@pytest.fixture
def mine(tmp_path):
    """A profile of the reader's own, on the tiny pair."""
    raw = yaml.safe_load((PROFILES / "cpu-tiny.yaml").read_text())
    raw |= {name: str((PROFILES / raw[name]).resolve()) for name in ("target", "draft", "prompts")}
    raw["states"]["path"] = str((PROFILES / raw["states"]["path"]).resolve())
    path = tmp_path / "my own.yaml"
    path.write_text(yaml.safe_dump(raw | {"name": "mine"}))
    return path


def test_cases_are_the_shipped_profiles_and_those_that_were_run(tmp_path, mine):
    assert set(cases(tmp_path / "runs")) == {f"{path.stem} ({path.name})" for path in PROFILES.glob("*.yaml")}
    folder = RunFolder(tmp_path / "runs" / "mine")
    folder.create()
    folder.sign(mine, {})
    assert cases(tmp_path / "runs")["mine (my own.yaml)"] == mine
    mine.unlink()
    assert "mine (my own.yaml)" not in cases(tmp_path / "runs")


def test_a_new_case_has_five_steps_that_did_not_run(tmp_path, mine):
    found = overview(mine, tmp_path / "runs")
    assert [(step.name, step.state) for step in found.steps] == [(link.name, "not run") for link in WORKBOOK]
    assert (found.run, found.problem) == (tmp_path / "runs" / "mine", "")
    assert not (tmp_path / "runs").exists()


def test_a_case_that_cannot_run_here_is_shown_with_the_reason(tmp_path, mine, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "there is no GPU here" in overview("gpu-example", tmp_path).problem
    mine.write_text(mine.read_text().replace(str(PROFILES.parent / "tiny" / "draft"), "nowhere"))
    found = overview(mine, tmp_path)
    assert "field draft" in found.problem and len(found.steps) == 5
    assert f"**Not on this machine as it is:** {found.problem}" in markdown(found)
    with pytest.raises(WiringError) as error:
        overview("nope")
    assert error.value.code == "profile-missing"


def test_links_lead_to_files_that_are_there_and_nowhere_else(tmp_path):
    beside, run = tmp_path / "a checkout" / "notebooks", tmp_path / "a checkout" / "runs" / "x"
    book = "01_a.ipynb"
    for path in (beside / book, run / "notebooks" / book, run / "by-hand" / book, run / "report.html"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = Overview(tmp_path / "x.yaml", run, (StepStatus("01_a", "ran"), StepStatus("02_b", "not run", why="a | b")))
    text = markdown(found, beside)
    goals = [unquote(goal) for goal in re.findall(r"\]\(([^)]+)\)", text)]
    assert len(goals) == 4 and all((beside / goal).is_file() for goal in goals)
    assert [line.count("|") - line.count(r"\|") for line in text.splitlines() if line.startswith("|")] == [7] * 4
    elsewhere = tmp_path / "elsewhere"
    shutil.move(run, elsewhere)
    assert len(re.findall(r"\]\(", markdown(Overview(found.profile, elsewhere, found.steps), beside))) == 1


def test_a_profile_in_a_few_lines_names_no_place_of_this_machine(mine):
    shown = profile_table("cpu-tiny")["value"]
    assert shown["target"] == "../tiny/target" and shown["trained layout"] == "(0, 3, 31)"
    assert str(Path.cwd()) not in shown.to_string()
    raw = yaml.safe_load(mine.read_text())
    mine.write_text(yaml.safe_dump(raw | {"engine": {"url": "http://127.0.0.1:30000"}}))
    assert profile_table(mine)["value"]["engine"].endswith("attached to http://127.0.0.1:30000 (read-only)")


def test_the_picker_of_the_index_writes_notebooks_for_the_case(tmp_path, mine):
    picker = open_index(str(mine), str(tmp_path / "runs"))
    assert "**not run**" in picker.steps.outputs[0]["data"]["text/markdown"]
    picker.measure.value = "recorded"
    picker.write.click()
    assert "5 of 5 notebooks written" in picker.result.outputs[0]["data"]["text/markdown"]
    written = sorted((tmp_path / "runs" / "mine" / "by-hand").glob("*.ipynb"))
    assert [path.stem for path in written] == [link.name for link in WORKBOOK]
    assert all(f"run = '{tmp_path / 'runs' / 'mine'}'" in path.read_text() for path in written)
    picker.case.value = PROFILES / "gpu-example.yaml"
    assert "gpu-example" in picker.steps.outputs[0]["data"]["text/markdown"]

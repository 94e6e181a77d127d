"""All five notebooks through papermill on a real server, with few prompts and few tokens.

Rates of so short a run are noise, so only results that do not depend on time are compared with bounds.
"""

import json
import uuid
from pathlib import Path

import psutil
import pytest

from wiring.workbook.workbook_run import run_workbook

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]
PROFILE = Path(__file__).with_name("reduced.yaml")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    before, mark = {p.pid for p in psutil.process_iter()}, uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WIRING_TEST_MARK", mark)
        result = run_workbook(PROFILE, run_root=tmp_path_factory.mktemp("runs"))
    left = [p for p in psutil.process_iter(["pid", "name", "cmdline"]) if p.pid not in before and _marked(p, mark)]
    assert not left, f"processes left behind: {left}"
    return result.run


def _marked(process: psutil.Process, mark: str) -> bool:
    """Return whether a process was started by this test, whatever its parent is now."""
    try:
        return process.environ().get("WIRING_TEST_MARK") == mark
    except psutil.Error:
        return False


@pytest.fixture(scope="module")
def summary(run):
    return json.loads((run / "summary.json").read_text())


def test_the_layouts_as_served_and_as_fixed(summary):
    phases = ("prefill", "verify", "draft_extend")
    assert summary["as_served"]["layout"] == dict.fromkeys(phases, [3, 31, 59])
    assert summary["cured"]["layout"] == dict.fromkeys(phases, [0, 3, 31])
    assert summary["standalone"]["trained_layout"] == [0, 3, 31]


def test_accuracy_and_accept_length_as_served_and_as_fixed(summary):
    assert summary["standalone"]["accuracy_trained"] >= 0.65 and summary["standalone"]["accuracy_served"] <= 0.2
    assert summary["as_served"]["accept_length"] <= 1.4 and summary["cured"]["accept_length"] >= 2.0


def test_every_arm_generates_the_target_s_text(summary):
    assert summary["lossless"] is True


def test_the_override_of_the_draft_tokens_is_found(summary):
    assert summary["arguments"]["overridden"] == ["draft tokens"]
    assert (summary["arguments"]["asked"]["draft tokens"], summary["arguments"]["resolved"]["draft tokens"]) == (8, 6)


def test_slot_0_equals_the_embedding_with_every_fix(run):
    patch = json.loads((run / "04_patch.json").read_text())
    assert [cure["form"] for cure in patch["cures"]] == ["config", "plugin", "source"]
    for cure in patch["cures"]:
        assert cure["embedding_rows_bit_equal"] == cure["embedding_rows"] > 0
    assert patch["undone"] and patch["source_untouched"]


def test_the_report_and_the_executed_notebooks_exist(run):
    assert 1_000_000 < (run / "report.html").stat().st_size < 8_000_000  # plotly is embedded, so figures work offline
    assert len(list((run / "notebooks").glob("0*.ipynb"))) == 5
    assert not list((run / "scratch").glob("*")), "fixed copies and captures are removed"


def test_an_unchanged_case_resumes_without_running_anything(run):
    stamps = {p: p.stat().st_mtime_ns for p in (run / "notebooks").glob("*.ipynb")}
    run_workbook(PROFILE, run_root=run.parent)
    assert {p: p.stat().st_mtime_ns for p in (run / "notebooks").glob("*.ipynb")} == stamps

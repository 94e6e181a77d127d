"""`wiring patch` on the release of the case: planned, shown, applied, verified and undone from the command line."""

import json
import shutil
from pathlib import Path

import pytest
from test_source_patch import bytes_of, unpack
from typer.testing import CliRunner

from wiring.cli.app import app

pytestmark = [pytest.mark.releases, pytest.mark.timeout(900)]

TINY = Path(__file__).parents[3] / "data" / "tiny"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return unpack("0.5.9", tmp_path_factory.mktemp("sglang-0.5.9"))


def call(command, tree, *more, layout="0,3,31"):
    pair = ("--target", TINY / "target", "--draft", TINY / "draft", "--layout", layout)
    asked = pair if command in ("plan", "diff", "apply") else ()
    found = CliRunner().invoke(app, ["patch", command, "--sglang", *map(str, (tree, *asked, *more))])
    return found.exit_code, found.stdout, found.exception


def test_the_plan_for_the_case_names_both_bugs_and_why_ids_alone_do_not_do(tree):
    status, out, _ = call("plan", tree, "--json")
    found = json.loads(out)
    assert status == 0 and found["version"] == "0.5.9"
    assert found["served"] == {"prefill": [4, 32, 60], "verify": [2, 30, 58], "draft_extend": [2, 30, 58]}
    (fix,) = found["cures"]
    assert fix["form"] == "source" and fix["phases"] == ["prefill", "verify", "draft_extend"]
    touched = " ".join(fix["changes"])
    assert "[-1, 2, 30]" in touched
    assert "deepseek_v2.py" in touched and "cuda_graph_runner.py" in touched and "_dummy_run" in touched
    assert found["advice"] == "source: " + "; ".join(fix["changes"])  # the advice names both edits, then
    assert "config:" in fix["reason"] and "plugins from 0.5.11" in fix["reason"]
    assert {row["form"] for row in found["refused"]} == {"config", "plugin"}
    assert len(fix["notes"]) == 1 and "every draft whose config names layer ids, also without -1" in fix["notes"][0]
    status, out, _ = call("plan", tree)
    assert status == 0 and f"note: {fix['notes'][0]}" in out


def test_applied_verified_and_undone_on_a_copy(tree, tmp_path):
    before, out, target = bytes_of(tree / "sglang"), tmp_path / "fixed", ("--target", TINY / "target")
    assert call("verify", tree, *target)[0] == 2
    status, text, _ = call("diff", tree)
    assert status == 0 and "cuda_graph_runner.py (patched)" in text
    status, text, _ = call("apply", tree, "--out", out, "--json")
    assert status == 0 and json.loads(text)["form"] == "source"
    config = json.loads((out / "draft" / "config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [-1, 2, 30]
    assert call("verify", out, *target, "--out", out)[0] == 0
    found = CliRunner().invoke(app, ["patch", "undo", "--out", str(out)])
    assert found.exit_code == 0 and not out.exists() and bytes_of(tree / "sglang") == before


def test_what_cannot_be_fixed_is_refused_with_the_reason(tree, tmp_path):
    status, out, _ = call("plan", tree, layout="3,0,31")
    assert status == 2 and "retrain" in out
    status, out, _ = call("plan", tree, "--json", layout="3,0,31")
    assert status == 2 and json.loads(out)["cures"] == [] and "retrain" in json.loads(out)["error"]["message"]
    _, _, error = call("apply", tree, "--out", tmp_path / "fixed", "--form", "config")
    assert error.code == "no-fix" and not (tmp_path / "fixed").exists()


def test_code_of_another_shape_is_refused_and_shown(tree, tmp_path):
    changed = shutil.copytree(tree, tmp_path / "changed")
    model = changed / "sglang" / "srt" / "models" / "deepseek_v2.py"
    asks, other = "if i in self.layers_to_capture:", "if i in set(self.layers_to_capture):"
    model.write_text(model.read_text().replace(asks, other))
    before = bytes_of(changed / "sglang")
    status, out, _ = call("plan", changed)
    assert status == 2 and "set(self.layers_to_capture)" in out
    assert bytes_of(changed / "sglang") == before

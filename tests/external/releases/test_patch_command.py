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
    asked = pair if command in ("plan", "diff", "apply", "verify") else ()
    found = CliRunner().invoke(app, ["patch", command, "--sglang", *map(str, (tree, *asked, *more))])
    return found.exit_code, found.stdout, found.exception


def test_the_plan_for_the_case_names_both_diseases_and_why_ids_alone_do_not_do(tree):
    status, out, _ = call("plan", tree, "--json")
    found = json.loads(out)
    assert status == 0 and found["version"] == "0.5.9"
    assert found["served"] == {"prefill": [4, 32, 60], "verify": [2, 30, 58], "draft_extend": [2, 30, 58]}
    (cure,) = found["cures"]
    assert cure["form"] == "source" and cure["phases"] == ["prefill", "verify", "draft_extend"]
    touched = " ".join(cure["changes"])
    assert "[-1, 2, 30]" in touched
    assert "deepseek_v2.py" in touched and "cuda_graph_runner.py" in touched and "_dummy_run" in touched
    assert found["advice"] == "source: " + "; ".join(cure["changes"])  # the advice names both edits, then
    assert "config:" in cure["reason"] and "plugins from 0.5.11" in cure["reason"]
    assert {row["form"] for row in found["refused"]} == {"config", "plugin"}
    assert len(cure["notes"]) == 1 and "every draft whose config names layer ids, also without -1" in cure["notes"][0]
    status, out, _ = call("plan", tree)
    assert status == 0 and f"note: {cure['notes'][0]}" in out


def test_applied_verified_and_undone_byte_for_byte(tree, tmp_path):
    before = bytes_of(tree / "sglang")
    assert call("verify", tree)[0] == 2
    status, out, _ = call("diff", tree)
    assert status == 0 and "cuda_graph_runner.py (patched)" in out and bytes_of(tree / "sglang") == before
    status, out, _ = call("apply", tree, "--out", tmp_path / "cured", "--json")
    assert status == 0 and json.loads(out)["form"] == "source"
    config = json.loads((tmp_path / "cured" / "config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [-1, 2, 30]
    assert call("verify", tree)[0] == 0
    assert json.loads(call("status", tree, "--json")[1])["standing"] == "applied"
    assert call("undo", tree)[0] == 0
    assert bytes_of(tree / "sglang") == before
    assert call("undo", tree, "--out", tmp_path / "cured")[0] == 0 and not (tmp_path / "cured").exists()


def test_what_cannot_be_cured_is_refused_with_the_reason(tree, tmp_path):
    status, out, _ = call("plan", tree, layout="3,0,31")
    assert status == 2 and "retrain" in out
    status, out, _ = call("plan", tree, "--json", layout="3,0,31")
    assert status == 2 and json.loads(out)["cures"] == [] and "retrain" in json.loads(out)["error"]["message"]
    status, _, error = call("apply", tree, "--out", tmp_path / "cured", "--form", "config")
    assert "config form does not do" in str(error) and not (tmp_path / "cured").exists()


def test_code_of_another_shape_is_refused_and_shown(tree, tmp_path):
    spoilt = shutil.copytree(tree, tmp_path / "spoilt")
    model = spoilt / "sglang" / "srt" / "models" / "deepseek_v2.py"
    asks, other = "if i in self.layers_to_capture:", "if i in set(self.layers_to_capture):"
    model.write_text(model.read_text().replace(asks, other))
    before = bytes_of(spoilt / "sglang")
    status, out, _ = call("plan", spoilt)
    assert status == 2 and "set(self.layers_to_capture)" in out
    assert bytes_of(spoilt / "sglang") == before

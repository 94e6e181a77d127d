"""`wiring patch` from the command line, on the tiny pair: the copy read again, and all of a cure or nothing of it."""

import json
import os
from pathlib import Path

import pytest
from stand_in import FILES, contents, know_the_stand_in, write_tree
from typer.testing import CliRunner

from wiring.checkpoints.copy_record import MARKER
from wiring.cli.app import app
from wiring.errors import WiringError
from wiring.patch.plan import plan_cures, source_change
from wiring.patch.source import apply, status
from wiring.patch.source.for_a_while import mark, take_back


def call(*words):
    found = CliRunner().invoke(app, ["patch", *map(str, words), "--json"])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.exit_code, json.loads(found.stdout)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A stand-in for SGLang 0.5.23, whose files need edits at every kind of site."""
    know_the_stand_in(monkeypatch)
    return write_tree(tmp_path / "site-packages", version="0.5.23")


@pytest.mark.parametrize("form", ["config", "plugin"])
def test_the_copy_is_read_again_and_sglangs_files_are_not_asked_for(tmp_path, form):
    out = tmp_path / "cured"
    assert call("apply", "--form", form, "--out", out)[0] == 0
    code, found = call("verify", "--out", out)
    assert code == 0 and list(found) == ["copy"] and all(row["stands"] for row in found["copy"])
    config = json.loads((out / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [3, 31, 59]
    (out / "config.json").write_text(json.dumps(config))
    code, found = call("verify", "--out", out)
    wrong = [row["what"] for row in found["copy"] if not row["stands"]]
    assert code == 2 and wrong == ["layer ids of the copy", "layout by the rules of SGLang 0.5.23"]
    assert "layer ids of the copy" in found["error"]["message"]
    assert call("undo", "--out", out)[0] == 0 and not out.exists()
    code, found = call("undo", "--out", out)  # as a second undo of SGLang's files, it has nothing to do
    assert code == 0 and "nothing to undo" in found["done"][0]


def test_a_draft_that_changed_or_went_is_told(tmp_path):
    pair = Path(__file__).parents[3] / "data" / "tiny"
    draft, out = tmp_path / "draft", tmp_path / "cured"
    draft.mkdir()
    for name in ("config.json", "model.safetensors"):
        (draft / name).write_bytes((pair / "draft" / name).read_bytes())
    words = ("--target", pair / "target", "--draft", draft, "--layout", "0,3,31", "--out", out)
    assert call("apply", *words)[0] == 0 and call("verify", "--out", out)[0] == 0
    (draft / "config.json").write_text((draft / "config.json").read_text() + "\n")
    (draft / "model.safetensors").unlink()
    code, found = call("verify", "--out", out)
    told = {row["what"]: row["text"] for row in found["copy"] if not row["stands"]}
    assert code == 2 and set(told) == {"files of the draft that it links to", "config of the draft itself"}
    assert "model.safetensors" in told["files of the draft that it links to"]


def test_the_source_form_is_read_again_at_every_site(tree, tmp_path):
    before, out = contents(tree.package), tmp_path / "cured"
    at = ("--sglang", tree.package)
    code, found = call("apply", *at, "--form", "source", "--out", out)
    assert code == 0 and any("also without -1" in line for line in found["done"])
    code, found = call("verify", *at, "--out", out)
    assert code == 0 and len(found["sites"]) == 5 and all(row["stands"] for row in found["sites"] + found["copy"])
    assert len(call("verify", *at, "--layout", "3,31,50")[1]["sites"]) == 3  # without the embedding the graphs alone
    assert "wiring patch undo" in " ".join(call("undo", *at, "--out", out)[1]["done"])  # the files are still edited
    assert call("verify", *at)[0] == 0
    assert call("undo", *at)[0] == 0 and contents(tree.package) == before
    code, found = call("verify", *at)
    assert code == 2 and not any(row["stands"] for row in found["sites"]) and "missing: " in found["error"]["found"]


def test_where_the_copy_cannot_be_made_sglang_is_not_edited(tree, tmp_path):
    mine, before = tmp_path / "mine", contents(tree.package)
    mine.mkdir()
    with pytest.raises(WiringError, match="left alone"):
        call("apply", "--sglang", tree.package, "--form", "source", "--out", mine)
    assert contents(tree.package) == before and not list(mine.iterdir())
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(WiringError, match="cannot be written"):  # which only shows when it is tried
        call("apply", "--sglang", tree.package, "--form", "source", "--out", tmp_path / "file" / "cured")
    assert contents(tree.package) == before


def test_what_is_applied_to_stay_is_not_taken_for_a_killed_notebooks(tree, tmp_path):
    pair = Path(__file__).parents[3] / "data" / "tiny"
    configs = [json.loads((pair / part / "config.json").read_text()) for part in ("target", "draft")]
    cure = plan_cures("0.5.23", *configs, (0, 3, 31), tree=tree).cures[-1]
    left = mark("a test")
    left["for_a_while"]["started"] -= 1000.0
    apply(source_change(cure, tree, left))
    assert call("apply", "--sglang", tree.package, "--form", "source", "--out", tmp_path / "cured")[0] == 0
    assert take_back(tree) is False and "for_a_while" not in status(tree).record["plan"]
    assert all(tree.file(path).read_text() != text for path, text in FILES.items())


def test_what_killed_calls_left_beside_a_copy_is_removed(tmp_path):
    out, gone = tmp_path / "cured", 2**22 + 1  # no process has such a number
    for name in (f".cured.{gone}.new.tmp", f".cured.{gone}.old.tmp", f".cured.{os.getppid()}.new.tmp", ".cured.x.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / MARKER).write_text("{}")
    assert call("apply", "--out", out)[0] == 0
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"cured", f".cured.{os.getppid()}.new.tmp", ".cured.x.tmp"}

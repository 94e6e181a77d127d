"""`wiring patch` from the command line, on the tiny pair: everything is written to copies and read again."""

import json
import subprocess
from pathlib import Path

import pytest
from stand_in import FILES, contents, know_the_stand_in, write_tree
from typer.testing import CliRunner

from wiring.cli.app import app
from wiring.errors import WiringError

PAIR = Path(__file__).parents[3] / "data" / "tiny"


def invoke(*words):
    found = CliRunner().invoke(app, ["patch", *map(str, words)])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.exit_code, found.stdout


def call(*words):
    code, out = invoke(*words, "--json")
    return code, json.loads(out)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A stand-in for SGLang 0.5.23, whose files need edits at every kind of site."""
    know_the_stand_in(monkeypatch)
    return write_tree(tmp_path / "site-packages", version="0.5.23")


@pytest.mark.parametrize("form", ["config", "plugin"])
def test_the_copy_is_read_again_without_sglangs_files(tmp_path, form):
    out = tmp_path / "fixed"
    assert call("apply", "--form", form, "--out", out)[0] == 0
    code, found = call("verify", "--out", out)
    assert code == 0 and list(found) == ["copy"] and all(row["stands"] for row in found["copy"])
    assert call("status", "--out", out)[1]["record"]["form"] == form
    config = json.loads((out / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [3, 31, 59]
    (out / "config.json").write_text(json.dumps(config))
    code, found = call("verify", "--out", out)
    wrong = [row["what"] for row in found["copy"] if not row["stands"]]
    assert code == 2 and wrong == ["layer ids of the copy", "layout by the rules of SGLang 0.5.23"]
    assert found["error"]["code"] == "fix-incomplete"
    assert call("undo", "--out", out)[0] == 0 and not out.exists()
    assert call("undo", "--out", out)[0] == 0  # a second time there is nothing to do
    assert call("status", "--out", out)[1]["standing"] == "none"


def test_a_draft_that_changed_or_is_gone_is_reported(tmp_path):
    draft, out = tmp_path / "draft", tmp_path / "fixed"
    draft.mkdir()
    for name in ("config.json", "model.safetensors"):
        (draft / name).write_bytes((PAIR / "draft" / name).read_bytes())
    words = ("--target", PAIR / "target", "--draft", draft, "--layout", "0,3,31", "--out", out)
    assert call("apply", *words)[0] == 0
    assert call("verify", "--target", PAIR / "target", "--out", out)[0] == 0
    (draft / "config.json").write_text((draft / "config.json").read_text() + "\n")
    (draft / "model.safetensors").unlink()
    code, found = call("verify", "--target", PAIR / "target", "--out", out)
    missing = {row["what"]: row["text"] for row in found["copy"] if not row["stands"]}
    assert code == 2 and set(missing) == {"files of the draft that it links to", "config of the draft itself"}
    assert "model.safetensors" in missing["files of the draft that it links to"]


def test_the_source_fix_is_written_to_a_copy_and_read_again_at_every_site(tree, tmp_path):
    before, out, at = contents(tree.package), tmp_path / "fixed", ("--sglang", tree.package)
    code, found = call("apply", *at, "--form", "source", "--out", out)
    assert code == 0 and found["form"] == "source"
    assert any(f"PYTHONPATH={out}" in line and "sglang.launch_server" in line for line in found["done"])
    code, found = call("verify", "--out", out)
    assert code == 0 and len(found["sites"]) == 5 and all(row["stands"] for row in found["sites"] + found["copy"])
    code, found = call("verify", *at)
    assert code == 2 and not any(row["stands"] for row in found["sites"])
    (out / "sglang" / "srt/models/deepseek_v2.py").write_bytes(tree.file("srt/models/deepseek_v2.py").read_bytes())
    assert len(call("verify", "--out", out)[1]["error"]["found"].split("; ")) == 2  # setter and capture
    assert call("undo", "--out", out)[0] == 0 and not out.exists() and contents(tree.package) == before


def test_the_patch_applied_by_hand_is_what_verify_expects(tree):
    code, text = invoke("diff", "--sglang", tree.package, "--form", "source", "--patch")
    assert code == 0 and text.startswith("diff --git a/sglang/srt/")
    subprocess.run(["patch", "-p1", "-s"], input=text, text=True, cwd=tree.package.parent, check=True, timeout=60)
    assert call("verify", "--sglang", tree.package)[0] == 0
    with pytest.raises(WiringError) as error:
        call("diff", "--sglang", tree.package, "--form", "config", "--patch")
    assert error.value.code == "no-source-patch"


@pytest.mark.parametrize("form", ["config", "source"])
def test_a_destination_that_is_not_ours_is_refused_and_nothing_is_written(tree, tmp_path, form):
    mine, before = tmp_path / "mine", contents(tree.package)
    mine.mkdir()
    for out, code in ((mine, "not-our-copy"), (None, "out-missing")):
        with pytest.raises(WiringError) as error:
            call("apply", "--sglang", tree.package, "--form", form, *(("--out", out) if out else ()))
        assert error.value.code == code
    assert contents(tree.package) == before and not list(mine.iterdir()) and set(FILES) <= set(before)

"""What a cured copy records of its training, and what lint and accuracy make of it; without a record they assume."""

import json
from pathlib import Path

import pytest

from wiring.checkpoints.copy_record import MARKER, read_copy_record
from wiring.engines.resolve import parse_engine
from wiring.errors import WiringError
from wiring.layers import Phase
from wiring.lint import lint
from wiring.patch.copies import apply_fix, config_digest
from wiring.patch.fix_kinds import FixKind
from wiring.patch.plan import plan_fixes
from wiring.patch.source import find_tree

TINY = Path(__file__).parents[3] / "data" / "tiny"
TRAINED = (0, 3, 31)
CONFIGS = [json.loads((TINY / part / "config.json").read_text()) for part in ("target", "draft")]


def copy(form, folder):
    fix = plan_fixes("0.5.23", *CONFIGS, TRAINED, tree=find_tree()).fix(form)
    return apply_fix(TINY / "draft", fix, folder, TRAINED).draft


def read(folder, engine="sglang==0.5.23", **more):
    return lint(folder, TINY / "target", parse_engine(engine), **more)


def layouts(result):
    return {result.served[phase] for phase in Phase}


def told(result):
    return {(finding.kind, finding.severity) for finding in result.findings if finding.severity != "note"}


@pytest.mark.parametrize(
    ("form", "assumes"),
    [
        (FixKind.CONFIG, ""),
        (FixKind.PLUGIN, "WIRING_EMBEDDING_ID=1"),
        (FixKind.SOURCE, "wiring patch verify"),
    ],
)
def test_a_cured_copy_lints_clean_and_says_what_its_server_must_be(tmp_path, form, assumes):
    folder = copy(form, tmp_path / "cured")
    result = read(folder)
    assert result.findings == () and layouts(result) == {TRAINED}
    assert result.trained.layout == TRAINED and MARKER in result.trained.why
    gaps = [gap.why for gap in result.not_checked if gap.check == "layout"]  # others want a server's arguments
    assert len(gaps) == bool(assumes) and all(assumes in gap for gap in gaps)


def test_the_record_is_whole(tmp_path):
    record = read_copy_record(copy(FixKind.PLUGIN, tmp_path / "cured"))
    assert (record.form, record.ids, record.layout) == ("plugin", (-1, 2, 30), TRAINED)
    assert record.environment == {"WIRING_EMBEDDING_ID": "1"} and record.source == str((TINY / "draft").resolve())
    assert record.source_config_sha256 == config_digest(TINY / "draft")
    assert read_copy_record(TINY / "draft") is None


def test_ids_that_were_changed_in_the_copy_are_served_by_the_rules_again(tmp_path):
    """Fed layers 3, 31 and 59, and known to be trained on the embedding, 3 and 31: that is an error, not a guess."""
    folder = copy(FixKind.SOURCE, tmp_path / "cured")
    (folder / "config.json").write_text((TINY / "draft" / "config.json").read_text())
    result = read(folder)
    assert layouts(result) == {(3, 31, 59)} and told(result) == {(1, "error")}
    assert not any("made for" in gap.why for gap in result.not_checked)


def test_a_copy_for_patched_files_on_an_engine_that_has_none(tmp_path):
    folder = copy(FixKind.SOURCE, tmp_path / "cured")
    assert layouts(read(folder, "sglang==0.5.9")) == {TRAINED}  # which its edited files serve, graphs and all
    assert layouts(read(folder, "sglang==0.5.23", embedding_plugin=True)) == {TRAINED}
    assert TRAINED not in layouts(read(folder, "vllm"))


def test_without_a_record_the_trainers_numbering_is_assumed_and_a_difference_is_a_warning():
    """3, 31 and 59 as output ids would be boundaries 4, 32 and 60; nothing in the file says that they are."""
    result = read(TINY / "draft")
    assert told(result) == {(2, "warning")} and result.trained.layout == (4, 32, 60)
    (finding,) = [finding for finding in result.findings if finding.severity == "warning"]
    assert "assumed" in finding.evidence and "output ids as SpecForge writes them" in finding.evidence
    assert "--trained" in finding.remedy and "wiring search" in finding.remedy
    assert told(read(TINY / "draft", trained=TRAINED)) == {(1, "error")}


def test_an_older_record_holds_no_layout_and_a_spoilt_one_is_told(tmp_path):
    folder = copy(FixKind.CONFIG, tmp_path / "cured")
    marker = folder / MARKER
    old = {
        key: value
        for key, value in json.loads(marker.read_text()).items()
        if key in ("source", "source_config_sha256", "ids")
    }
    marker.write_text(json.dumps(old))
    assert read(folder).trained.layout == (1, 4, 32) and not read(folder).trained.certain
    marker.write_text(json.dumps(old | {"layout": ["a"]}))
    with pytest.raises(WiringError) as caught:
        read(folder)
    assert (caught.value.code, caught.value.where) == ("config-field-invalid", str(marker))
    assert caught.value.problem.startswith("layout.0 ")
    marker.write_text("{")
    with pytest.raises(WiringError) as caught:
        read(folder)
    assert (caught.value.code, caught.value.where) == ("json-unreadable", str(marker))


@pytest.fixture
def accuracy(wiring_call):
    """`wiring accuracy` on two saved documents, which hold boundaries 0, 3, 31 and 59: status, stdout, stderr."""
    asked = ("--states", TINY / "states", "--target", TINY / "target", "--limit", 2, "--ttt-steps", 1)
    return lambda draft, *more: wiring_call("accuracy", "--draft", draft, *asked, *more)


@pytest.mark.parametrize("form", FixKind)
def test_accuracy_takes_the_layout_that_a_copy_was_made_for(tmp_path, accuracy, form):
    status, out, _ = accuracy(copy(form, tmp_path / "cured"), "--json")
    found = json.loads(out)
    assert (status, tuple(found["layout"])) == (0, TRAINED) and MARKER in found["layout_from"]
    said = json.loads(accuracy(TINY / "draft", "--layout", "0,3,31", "--json")[1])
    assert found["depths"] == said["depths"] and said["layout_from"] == "given by --layout"


def test_accuracy_says_where_the_layout_comes_from_and_takes_what_is_said_before_it(tmp_path, accuracy):
    folder = copy(FixKind.PLUGIN, tmp_path / "cured")
    assert f"layout (0, 3, 31): the layout that this copy was made for, in {MARKER}\n" in accuracy(folder)[1]
    assert "layout (3, 31, 59): given by --layout\n" in accuracy(folder, "--layout", "3,31,59")[1]


def test_without_a_record_of_a_layout_that_fills_fc_accuracy_asks(tmp_path, accuracy):
    def refusal(draft):
        status, out, _ = accuracy(draft, "--json")
        error = json.loads(out)["error"]
        assert (status, error["code"]) == (2, "layout-ambiguous")
        return error["message"]

    assert "(4, 32, 60)" in refusal(TINY / "draft")
    marker = copy(FixKind.CONFIG, tmp_path / "cured") / MARKER
    record = json.loads(marker.read_text())
    for layout, found in ((None, "(1, 4, 32)"), ([0, 3], "2 boundaries")):
        marker.write_text(json.dumps(record | {"layout": layout}))
        assert found in refusal(marker.parent)

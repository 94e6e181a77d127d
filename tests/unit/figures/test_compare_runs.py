"""Two runs side by side: what changed, and which rows must not be compared, with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from wiring.errors import WiringError
from wiring.workbook.compare_runs import compare, read_run
from wiring.workbook.run_folder import RunFolder

ARGUMENTS = [
    {"name": name, "asked": value, "resolved": value, "overridden": False, "reason": ""}
    for name, value in (("steps", 5), ("top-k", 1), ("draft tokens", 6))
]
RATES = ("plain, tokens / s", "cured, tokens / s", "cured, speed-up")
LENGTHS = ("as served, accept length", "cured, accept length", "cured, acceptance by position")


@pytest.fixture
def make(tmp_path, five):
    """A finished run with a profile of its own, changed by `edit(files by name, profile)`."""
    for name, content in (("target", "one"), ("draft", "two"), ("states", "three")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(content)

    def make(name: str, edit=lambda files, profile: None) -> Path:
        files = {key: json.loads(value.model_dump_json()) for key, value in five.items()}
        files["01_throughput"]["arguments"] = ARGUMENTS
        files["05_rebenchmark"]["machine"]["versions"]["eagle3-wiring-workbook"] = "1.0"
        files["05_measured"] = {"prompt_ids": [[1, 2], [3]], "new_tokens": 40}
        profile = {"name": name, "target": "target", "draft": "draft", "states": {"path": "states"}}
        profile["expected"] = {"x": 1}
        edit(files, profile)
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(profile))
        run = RunFolder(tmp_path / "runs" / name)
        run.create()
        run.sign(tmp_path / f"{name}.yaml", {})
        for key, value in files.items():
            (run.path / f"{key}.json").write_text(json.dumps(value))
        return run.path

    return make


def held(make, edit):
    """Compare a run with its copy that `edit` changed; rows by name."""
    folders = make("before"), make("after", edit)
    result = compare(*(read_run(folder, folder.parent.parent / f"{folder.name}.yaml") for folder in folders))
    return result, {row.name: row for row in result.rows}


def test_runs_that_are_alike_differ_in_nothing(make):
    result, rows = held(make, lambda files, profile: None)
    assert result.differences == () and "noise" in result.note
    assert not any(row.refused or row.unchecked for row in result.rows)
    assert rows["cured, tokens / s"].change == "x 1.00" and rows["cured, accept length"].change == "+0.00"
    assert rows["trained layout"].change == "same" and rows["checks that hold, notebook 01"].a == "1 of 1"


def test_an_upgrade_is_compared_and_named(make):
    def upgrade(files, profile):
        found = files["05_rebenchmark"]
        found["machine"]["versions"]["sglang"] = "0.5.24"
        found["cured"]["tok_per_s"], found["cured"]["accept_length"] = 27.0, 2.3
        found["cured"]["acceptance_by_position"] = [0.4]
        files["03_layout"]["captured"]["verify"] = [2, 30, 58]

    result, rows = held(make, upgrade)
    assert [(one.what, one.a, one.b) for one in result.differences] == [("SGLang", "0.5.23", "0.5.24")]
    assert result.note.endswith("the reason for a change: SGLang.")
    assert (rows["cured, tokens / s"].a, rows["cured, tokens / s"].b) == ("36.00", "27.00")
    assert rows["cured, tokens / s"].change == "x 0.75" and rows["cured, accept length"].change == "-0.50"
    assert rows["cured, acceptance by position"].change == "(-0.10)"
    assert rows["as served, fed in verify"].b == "(2, 30, 58)" and rows["as served, fed in verify"].change == "other"
    assert not any(row.refused for row in result.rows)


def _other(name):
    """An edit that changes one thing that rows depend on."""

    def edit(files, profile):
        found = files["05_rebenchmark"]
        if name == "machine":
            found["machine"]["processor"] = "q"
        elif name == "rule of rates":
            found["rate_rule"] = "without the prefill"
        elif name == "rule of accept lengths":
            found["accept_rule"] = "without the bonus token"
        elif name == "rule of accuracies":
            files["02_accuracy"]["accuracy_rule"] = "torchspec"
        elif name == "text":
            files["05_measured"]["new_tokens"] = 80
        elif name == "resolved setting":
            files["01_throughput"]["arguments"] = [{**ARGUMENTS[0], "resolved": 3}, *ARGUMENTS[1:]]
        elif name == "workbook":
            found["machine"]["versions"]["eagle3-wiring-workbook"] = "9.9"
        else:
            profile["expected"] = {"x": 2}

    return edit


@pytest.mark.parametrize(
    ("name", "refused", "kept"),
    [
        ("machine", RATES, LENGTHS),
        ("rule of rates", RATES, LENGTHS),
        ("rule of accept lengths", LENGTHS, RATES),
        ("rule of accuracies", ("accuracy, trained layout", "accuracy, served layout"), (*RATES, *LENGTHS)),
        ("text", (*RATES, *LENGTHS), ("accuracy, trained layout",)),
        ("resolved setting", (*RATES[1:], *LENGTHS), ("plain, tokens / s",)),
        ("bounds of the checks", ("checks that hold, notebook 05",), RATES),
        ("workbook", ("checks that hold, notebook 05",), RATES),
    ],
)
def test_what_must_not_be_compared_is_said_and_shown(make, name, refused, kept):
    result, rows = held(make, _other(name))
    assert [one.what for one in result.differences] == [name]
    for row in refused:
        assert rows[row].refused == f"other {name}" and rows[row].change == "", row
        assert rows[row].a != "-"
    for row in kept:
        assert not rows[row].refused and rows[row].change, row


def test_an_unknown_workbook_is_not_taken_for_the_same(make):
    def unknown(files, profile):
        del files["05_rebenchmark"]["machine"]["versions"]["eagle3-wiring-workbook"]

    _, rows = held(make, unknown)
    row = rows["checks that hold, notebook 05"]
    assert row.unchecked == "not known whether alike: workbook" and row.change == "same"


def test_the_counters_names_belong_to_the_release_and_not_to_the_rule(make):
    def other_release(files, profile):
        files["05_rebenchmark"]["accept_rule"] = "a, from other_counters of SGLang 0.5.9"

    result, _ = held(make, other_release)
    assert result.differences == ()


def test_two_changes_at_once_are_told(make, tmp_path):
    def two(files, profile):
        files["05_rebenchmark"]["machine"]["versions"]["sglang"] = "0.5.24"
        files["05_rebenchmark"]["form"] = "plugin"

    result, _ = held(make, two)
    assert result.note.startswith("SGLang, form of the cure differ at once")


def test_target_and_draft_are_known_by_their_files_and_not_by_their_place(make, tmp_path):
    for place, content in (("moved", "two"), ("retrained", "TWO")):
        (tmp_path / place / "draft").mkdir(parents=True)
        (tmp_path / place / "draft" / "config.json").write_text(content)
    result, _ = held(make, lambda files, profile: profile.update(draft="moved/draft"))
    assert result.differences == ()
    (tmp_path / "runs").rename(tmp_path / "earlier")
    result, rows = held(make, lambda files, profile: profile.update(draft="retrained/draft"))
    assert [one.what for one in result.differences] == ["draft"]
    assert not rows["cured, accept length"].refused  # it is what is compared


def test_a_profile_that_is_gone_leaves_rows_unchecked(make):
    folders = make("before"), make("after")
    result = compare(*(read_run(folder, folder / "gone.yaml") for folder in folders))
    rows = {row.name: row for row in result.rows}
    assert rows["cured, tokens / s"].unchecked == "not known whether alike: target"
    assert rows["cured, tokens / s"].change == "x 1.00"


def test_figures_of_an_older_release_are_shown_as_far_as_they_are_there(make):
    def older(files, profile):
        del files["05_rebenchmark"]["prediction"], files["05_rebenchmark"]["cured"]["accept_length"]

    _, rows = held(make, older)
    row = rows["cured, accept length"]
    assert (row.a, row.b, row.change) == ("2.80", "-", "")
    assert rows["price of a round, plain steps"].b == "-"


def test_on_the_command_line(make, wiring_call, tmp_path):
    make("before")
    make("after", _other("machine"))
    page = tmp_path / "both.html"
    words = ("compare", "before", "after", "--runs", tmp_path / "runs")
    status, out, _ = wiring_call(*words, "--html", page)
    told = " ".join(out.split())
    assert status == 0 and "Not the same" in told and "not compared" in told and f"Written: {page}" in out
    html = page.read_text()
    assert "not compared: other machine" in html and "<td>q, 2 cores</td>" in html
    assert html.count("Plotly.newPlot(") >= 2 and not [word for word in html.split() if word.startswith('src="http')]
    status, out, _ = wiring_call(*words, "--json")
    assert status == 0
    rows = {row["name"]: row for row in json.loads(out)["rows"]}
    assert rows["plain, tokens / s"]["refused"] == "other machine"


def test_what_cannot_be_compared_is_told(make, wiring_call, tmp_path):
    folder = make("before")
    words = ("compare", "before", "before", "--runs", tmp_path / "runs")
    assert wiring_call(*words)[0] == 0
    assert "--html FILE" in wiring_call(*words, "--open")[2]
    assert "there is no such run" in wiring_call("compare", "before", "other", "--runs", tmp_path / "runs")[2]
    path = folder / "05_rebenchmark.json"
    for content, code in ((None, "run-not-finished"), ("[]", "run-file-not-object"), ("{", "run-file-unreadable")):
        path.unlink() if content is None else path.write_text(content)
        with pytest.raises(WiringError) as error:
            read_run(folder)
        assert (error.value.code, error.value.where) == (code, str(path))

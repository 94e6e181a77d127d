"""Profiles are validated before anything runs, and the message names the file and the field."""

from pathlib import Path

import pytest
import yaml

from wiring.case.profile import PROFILES, load_profile
from wiring.errors import WiringError


@pytest.fixture
def good(tmp_path):
    for name in ("target", "draft", "states"):
        (tmp_path / name).mkdir()
    (tmp_path / "prompts.json").write_text("[]")
    return {
        "name": "mine",
        "target": "target",
        "draft": "draft",
        "prompts": "prompts.json",
        "states": {"path": "states", "boundaries": [0, 3, 31]},
        "trained_layout": [0, 3, 31],
        "validation_accuracy": 0.7,
    }


def write(tmp_path, raw) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def test_paths_are_relative_to_the_file(tmp_path, good):
    profile = load_profile(write(tmp_path, good))
    assert profile.target == tmp_path / "target" and profile.states.path == tmp_path / "states"
    assert profile.layout == (0, 3, 31) and profile.speculation.speculation().draft_tokens == 8


@pytest.mark.parametrize(
    "change, message",
    [
        ({"name": "Bad Name"}, "field name"),
        ({"targt": "x"}, "field targt.*Extra inputs"),
        ({"target": "nowhere"}, "field target.*no such file or folder"),
        ({"validation_accuracy": 75}, "field validation_accuracy.*less than or equal to 1"),
        ({"trained_layout": [0, 3, 32]}, "boundary 32"),
        ({"trained_layout": [-1, 2, 30]}, "field trained_layout.0"),
        ({"speculation": {"steps": 0}}, "field speculation.steps"),
        ({"engine": {"device": "tpu"}}, "field engine.device"),
        ({"benchmark": {"prompts": "many"}}, "field benchmark.prompts"),
    ],
)
def test_a_bad_field_is_named(tmp_path, good, change, message):
    with pytest.raises(WiringError, match=message) as caught:
        load_profile(write(tmp_path, {**good, **change}))
    assert "mine.yaml" in str(caught.value)


def test_a_missing_field_and_a_broken_file(tmp_path, good):
    with pytest.raises(WiringError, match="field draft.*Field required"):
        load_profile(write(tmp_path, {k: v for k, v in good.items() if k != "draft"}))
    (tmp_path / "mine.yaml").write_text("a: [1")
    with pytest.raises(WiringError, match="not readable as YAML"):
        load_profile(tmp_path / "mine.yaml")
    with pytest.raises(WiringError, match="no such profile.*cpu-tiny"):
        load_profile("nope")


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_profiles_are_valid(path):
    assert load_profile(path).name == path.stem

"""Profiles are validated before anything runs, and the message names the file and the field."""

import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from wiring.errors import WiringError
from wiring.server.preflight import gpus_needed
from wiring.workbook.profile import PROFILES, Profile, load_profile, read_profile


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
        ({"targt": "x"}, "field targt: unknown field; did you mean target"),
        ({"benchmark": {"promts": 8}}, "field benchmark.promts: unknown field; did you mean prompts"),
        ({"engine": {"xyz": 8}}, "field engine.xyz: unknown field; there are device, dtype"),
        ({"nmae": "x", "validation_accuracy": 7}, "field nmae.*To correct too: validation_accuracy"),
        ({"target": "nowhere"}, "field target.*no such file or folder"),
        ({"validation_accuracy": 75}, "field validation_accuracy.*less than or equal to 1"),
        ({"trained_layout": [0, 3, 32]}, "field trained_layout: boundary 32 is not in states.boundaries"),
        ({"trained_layout": [-1, 2, 30]}, "field trained_layout.0"),
        ({"speculation": {"steps": 0}}, "field speculation.steps"),
        ({"engine": {"device": "tpu"}}, "field engine.device"),
        ({"engine": {"url": "gpubox:30000"}}, "field engine.url.*http://HOST:PORT"),
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
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(good) + "name: other\n")
    with pytest.raises(WiringError, match="name stands twice in line"):
        load_profile(tmp_path / "mine.yaml")
    (tmp_path / "mine.yaml").write_bytes(yaml.safe_dump(good).encode() + "# gr\xfc\xdfe\n".encode("latin-1"))
    with pytest.raises(WiringError, match="mine.yaml: not a text file in UTF-8"):
        load_profile(tmp_path / "mine.yaml")
    with pytest.raises(WiringError, match="^no profile is named.*cpu-tiny"):
        load_profile("")
    with pytest.raises(WiringError, match="no such profile.*cpu-tiny"):
        load_profile("nope")


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_profiles_are_valid(path):
    assert read_profile(path).name == path.stem


def test_the_shipped_default_has_its_files():
    assert load_profile("cpu-tiny").target.is_dir()


def test_what_is_read_is_not_looked_for(tmp_path, good):
    assert read_profile(write(tmp_path, {**good, "target": "nowhere"})).target == Path("nowhere")


GPU_EXAMPLE = PROFILES / "gpu-example.yaml"


def leaves(model, before=()):
    """(path of names, default) of every field of a model, those of nested models in place of the nested one."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from leaves(field.annotation, (*before, name))
        else:
            yield (*before, name), field.get_default() if not field.is_required() else None


def test_the_gpu_example_has_every_field_with_a_comment_and_its_true_default():
    raw, lines, section = yaml.safe_load(GPU_EXAMPLE.read_text()), {}, ""
    for line in GPU_EXAMPLE.read_text().splitlines():
        if found := re.match(r"( *)(\w+):", line):
            section = section if found[1] else found[2]
            lines[(section, found[2]) if found[1] else (found[2],)] = line
    assert set(lines) >= {path for path, _ in leaves(Profile)}
    for path, default in leaves(Profile):
        held = raw[path[0]] if len(path) == 1 else raw[path[0]][path[1]]
        line = lines[path]
        assert "  # " in line or path == ("engine", "extra_flags"), path
        told = re.search(r"\(default (.*)\)$", line)
        if told:
            assert yaml.safe_load(told[1]) == (list(default) if isinstance(default, tuple) else default), line
        elif path != ("engine", "extra_flags"):
            assert default is None, f"{path} has the default {default!r}, and its line does not say so: {held!r}"


def test_the_gpu_example_serves_on_eight_gpus_and_only_asks_what_it_attaches_to():
    engine = read_profile(GPU_EXAMPLE).engine
    assert (engine.device, gpus_needed(engine.extra_flags), engine.read_only) == ("cuda", 8, True)

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
    "change, field, part",
    [
        ({"name": "Bad Name"}, "name", ""),
        ({"targt": "x"}, "targt", "did you mean target"),
        ({"benchmark": {"promts": 8}}, "benchmark.promts", "did you mean prompts"),
        ({"engine": {"xyz": 8}}, "engine.xyz", "device, dtype"),
        ({"apply_to": "installed"}, "apply_to", "unknown field"),  # profiles of older releases may have it
        ({"nmae": "x", "validation_accuracy": 7}, "nmae", "validation_accuracy"),
        ({"validation_accuracy": 75}, "validation_accuracy", ""),
        ({"trained_layout": [0, 3, 32]}, "trained_layout", "boundary 32"),
        ({"trained_layout": [-1, 2, 30]}, "trained_layout.0", ""),
        ({"speculation": {"steps": 0}}, "speculation.steps", ""),
        ({"engine": {"device": "tpu"}}, "engine.device", ""),
        ({"engine": {"url": "gpubox:30000"}}, "engine.url", "http://HOST:PORT"),
        ({"benchmark": {"prompts": "many"}}, "benchmark.prompts", ""),
    ],
)
def test_a_bad_field_is_named(tmp_path, good, change, field, part):
    path = write(tmp_path, {**good, **change})
    with pytest.raises(WiringError) as error:
        load_profile(path)
    assert (error.value.code, error.value.where) == ("profile-field", f"{path}, field {field}")
    assert part in f"{error.value.problem} {error.value.remedy}"


def test_a_path_that_does_not_exist_is_refused(tmp_path, good):
    path = write(tmp_path, {**good, "target": "nowhere"})
    with pytest.raises(WiringError) as error:
        load_profile(path)
    assert (error.value.code, error.value.where) == ("profile-path-missing", f"{path}, field target")
    assert error.value.found == str(tmp_path / "nowhere")


def test_a_missing_field_and_a_broken_file(tmp_path, good):
    path, whole = tmp_path / "mine.yaml", yaml.safe_dump(good)
    without = yaml.safe_dump({name: value for name, value in good.items() if name != "draft"})
    for content, code, place, found in (
        (without, "profile-field", f"{path}, field draft", ""),
        ("a: [1", "profile-unreadable", f"{path}", "line 1"),
        (whole + "name: other\n", "profile-unreadable", f"{path}", "name"),
        ("- a list", "profile-not-mapping", f"{path}", "list"),
        (whole + "# gr\xfc\xdfe\n", "profile-not-utf8", f"{path}", "0xfc"),
    ):
        path.write_bytes(content.encode("latin-1"))
        with pytest.raises(WiringError) as error:
            load_profile(path)
        assert (error.value.code, error.value.where) == (code, place) and found in error.value.found
    for name, code in (("", "no-profile-named"), ("nope", "profile-missing")):
        with pytest.raises(WiringError) as error:
            load_profile(name)
        assert error.value.code == code and "cpu-tiny" in error.value.expected


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

"""A profile that this machine cannot serve is refused before the first notebook: no GPU, no server at its address."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from wiring.errors import WiringError
from wiring.workbook import live
from wiring.workbook.profile import PROFILES, EngineAsked
from wiring.workbook.workbook_run import run_workbook

FILE = Path("mine.yaml")


def profile(**engine):
    return SimpleNamespace(engine=EngineAsked(**engine))


@pytest.fixture
def checks(monkeypatch):
    """Record the checks of GPUs and of running servers instead of doing them."""
    done = []
    monkeypatch.setattr(live, "check_gpus", lambda *what: done.append(what))
    monkeypatch.setattr(live, "check_attached", lambda *what, drafts, api_key: done.append((*what, drafts)))
    return done


def test_a_profile_for_the_cpu_without_running_servers_needs_no_check(checks):
    live.check_ready(profile(), FILE)
    assert checks == []


def test_the_flags_and_addresses_of_a_profile_are_checked(checks):
    live.check_ready(
        profile(device="cuda", extra_flags=("--tp-size", "8"), url="http://a:1", plain_url="http://b:1"), FILE
    )
    assert checks == [
        (("--tp-size", "8"), "mine.yaml, field engine.device"),
        ("http://a:1", "mine.yaml, field engine.url", True),
        ("http://b:1", "mine.yaml, field engine.plain_url", False),
    ]


@pytest.fixture
def no_gpu(tmp_path, monkeypatch):
    """A machine whose driver lists no device, whatever this one has."""
    command = tmp_path / "driver" / "nvidia-smi"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\necho 'No devices were found'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:/usr/bin:/bin")


def test_the_chain_on_the_gpu_example_ends_at_once_without_a_gpu(no_gpu, tmp_path, wiring_call):
    runs = tmp_path / "runs"
    status, out, told = wiring_call("run", "gpu-example", "--runs", runs)
    assert (status, out) == (2, "")
    assert "gpu-example.yaml, field engine.device: there is no GPU here (expected 8 CUDA devices" in told
    assert not runs.exists()


def test_so_does_a_readers_own_profile_whose_files_are_all_there(no_gpu, tmp_path):
    raw = yaml.safe_load((PROFILES / "cpu-tiny.yaml").read_text())
    for name in ("target", "draft", "prompts"):
        raw[name] = str((PROFILES / raw[name]).resolve())
    raw["states"]["path"] = str((PROFILES / raw["states"]["path"]).resolve())
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(raw | {"name": "mine", "engine": {"device": "cuda", "dtype": "bfloat16"}}))
    with pytest.raises(WiringError, match="mine.yaml, field engine.device: there is no GPU .*expected 1 CUDA"):
        run_workbook(path, run_root=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_draft_of_another_width_ends_the_chain_before_a_server_is_started(tmp_path, wiring_call):
    raw = yaml.safe_load((PROFILES / "cpu-tiny.yaml").read_text())
    for name in ("target", "draft", "prompts"):
        raw[name] = str((PROFILES / raw[name]).resolve())
    raw["states"]["path"] = str((PROFILES / raw["states"]["path"]).resolve())
    shutil.copytree(raw["draft"], tmp_path / "draft")
    config = tmp_path / "draft" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"hidden_size": 999, "target_hidden_size": 999}))
    (tmp_path / "mine.yaml").write_text(json.dumps(raw | {"name": "mine", "draft": str(tmp_path / "draft")}))
    status, out, told = wiring_call("run", tmp_path / "mine.yaml", "--runs", tmp_path / "runs")
    assert (status, out) == (2, "") and "the draft does not fit the target: hidden size" in told
    assert not (tmp_path / "runs").exists()

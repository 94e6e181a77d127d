"""Whether the GPUs are there is told before a server is started: by the driver, the environment and torch's build."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wiring.errors import WiringError
from wiring.server.preflight_gpu import check_gpus, gpus_asked, listed_gpus, visible_gpus

LIST = "GPU 0: NVIDIA H200 (UUID: GPU-1)\n  MIG 1g.18gb Device 0: (UUID: MIG-2)\nGPU 1: NVIDIA H200 (UUID: GPU-3)"


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Put an nvidia-smi on the path that prints this and ends with this status."""

    def make(prints: str, status: int = 0) -> None:
        command = tmp_path / "nvidia-smi"
        command.write_text(f"#!/bin/sh\ncat <<'END'\n{prints}\nEND\nexit {status}\n")
        command.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")

    return make


@pytest.mark.parametrize(
    ("prints", "status", "count"), [(LIST, 0, 2), ("No devices found.", 0, 0), ("NVIDIA-SMI has failed", 9, 0)]
)
def test_devices_are_those_that_the_driver_lists(driver, prints, status, count):
    driver(prints, status)
    assert listed_gpus() == count


def test_without_the_drivers_tool_its_device_files_are_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    files = [path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdigit()]
    assert listed_gpus() == (len(files) or (None if Path("/dev/kfd").exists() else 0))


@pytest.mark.parametrize(
    ("chosen", "count"),
    [
        (None, 8),
        ("", 0),
        ("-1", 0),
        ("3", 1),
        ("0,1,2,3", 4),
        ("0,-1,2", 1),
        ("GPU-5a,GPU-7b", 2),
        ("0, 1", 2),
        ("MIG-a,MIG-b", 2),
    ],
)
def test_the_environment_hides_devices_as_cuda_reads_it(chosen, count):
    environment = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert visible_gpus(environment, lambda: 8) == count


def test_more_names_than_devices_are_no_more_devices_and_unknown_stays_unknown():
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, lambda: 2) == 2
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}, lambda: None) is None
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}, lambda: 0) == 0


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        ((), 1),
        (("--tp-size", "8"), 8),
        (("--tp-size=4", "--pp-size", "2"), 8),
        (("--tensor-parallel-size", "2"), 2),
        (("--tp", "16", "--nnodes", "2"), 8),
        (("--tp-size", "8", "--tp-size", "4"), 4),
        (("--tp-size",), 1),
        (("--tp-size", "many"), 1),
        (("--dp-size", "8", "--tp-size", "8", "--enable-dp-attention"), 8),
    ],
)
def test_the_flags_say_how_many_are_needed_on_this_node(flags, count):
    assert gpus_asked(flags) == count


def check(found, flags=(), torch="2.13.0"):
    return check_gpus(flags, "mine.yaml, field engine.device", visible=lambda: found, torch=lambda: torch)


def test_enough_devices_pass_and_so_does_what_cannot_be_known():
    assert check(8, ("--tp-size", "8")) is None
    assert check(None, ("--tp-size", "8")) is None


@pytest.mark.parametrize(
    ("found", "torch", "words"),
    [
        (0, "2.13.0", r"^mine.yaml, field engine.device: there is no GPU here \(expected 8 CUDA devices .*found none"),
        (4, "2.13.0", r"fewer GPUs here than the server's flags ask for \(expected 8 CUDA devices .*found 4\)"),
        (8, "2.13.0+cpu", r"installed for the CPU .*found torch 2.13.0\+cpu\). make setup ROUTE=gpu"),
    ],
)
def test_what_is_missing_is_told_with_what_to_do(found, torch, words):
    with pytest.raises(WiringError, match=words):
        check(found, ("--tp-size", "8"), torch)


def test_devices_that_the_environment_hides_are_told_as_hidden(driver, monkeypatch):
    driver(LIST)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(WiringError, match="no GPU here.*CUDA_VISIBLE_DEVICES=''"):
        check_gpus(())

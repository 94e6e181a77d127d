"""Preflight refuses a server that this machine cannot run, before a process starts."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from wiring.engines.sglang import Speculation
from wiring.errors import WiringError
from wiring.server import preflight as module
from wiring.server.launch import start
from wiring.server.preflight import check_gpus, gpus_needed, needed_bytes, preflight, visible_gpus
from wiring.server.server_spec import ServerSpec

TINY = Path(__file__).parents[3] / "data" / "tiny"
SPEC = ServerSpec(TINY / "target", TINY / "draft", Speculation(5, 1, 8))
LIST = "GPU 0: NVIDIA H200 (UUID: GPU-1)\n  MIG 1g.18gb Device 0: (UUID: MIG-2)\nGPU 1: NVIDIA H200 (UUID: GPU-3)"


@pytest.fixture
def machine(monkeypatch):
    """Set the installed SGLang, the free memory and the number of GPUs; enough of everything by default."""

    def make(sglang="0.5.23", free=10**12, gpus=8, torch="2.13.0"):
        monkeypatch.setattr(module, "installed_sglang", lambda: sglang)
        monkeypatch.setattr(module, "available_bytes", lambda device: free)
        monkeypatch.setattr(module, "visible_gpus", lambda: gpus)
        monkeypatch.setattr(module.metadata, "version", lambda name: torch)

    make()
    return make


@pytest.fixture
def draft_with(tmp_path):
    """Copy the draft and change its config; `ids` are the nested layer ids."""

    def make(ids=None, **changes):
        folder = tmp_path / "draft"
        shutil.copytree(TINY / "draft", folder)
        config = json.loads((folder / "config.json").read_text()) | changes
        if ids is not None:
            config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = ids
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return make


def refused(spec):
    with pytest.raises(WiringError) as error:
        preflight(spec)
    return error.value


def test_a_pair_that_fits_passes_without_notes(machine):
    assert preflight(SPEC) == ()
    assert preflight(replace(SPEC, draft=None, speculation=None)) == ()


def test_the_tensors_of_a_draft_in_torch_files_are_checked_too(machine, draft_with):
    """SafeAILab's drafts come as pytorch_model.bin, which SGLang loads as well."""
    import torch
    from safetensors.torch import load_file

    draft = draft_with()
    tensors = load_file(draft / "model.safetensors")
    (draft / "model.safetensors").unlink()
    torch.save(tensors, draft / "pytorch_model.bin")
    assert preflight(replace(SPEC, draft=draft)) == ()
    torch.save(tensors | {"fc.weight": tensors["fc.weight"][:, :-1].clone()}, draft / "pytorch_model.bin")
    error = refused(replace(SPEC, draft=draft))
    assert (error.code, error.where) == ("draft-does-not-fit", str(draft)) and "slot count" in error.problem


def test_folders_that_hold_no_model(machine, tmp_path):
    assert refused(replace(SPEC, target=tmp_path / "absent")).where == str(tmp_path / "absent" / "config.json")
    shutil.copy(TINY / "target" / "config.json", tmp_path)
    for field in ("target", "draft"):
        error = refused(replace(SPEC, **{field: tmp_path}))
        assert (error.code, error.where) == ("weights-missing", str(tmp_path))


@pytest.mark.parametrize(
    "changes, subject",
    [
        ({"hidden_size": 32}, "hidden size"),
        ({"vocab_size": 100}, "vocabulary"),
        ({"ids": [0, 3]}, "slot count"),
        ({"ids": [0, 3, 99]}, "layer ids"),
    ],
)
def test_a_draft_that_does_not_fit(machine, draft_with, changes, subject):
    error = refused(replace(SPEC, draft=draft_with(**changes)))
    assert error.code == "draft-does-not-fit" and f": {subject}" in error.problem


def test_the_embedding_id_is_valid_only_with_its_plugin(machine, draft_with):
    spec = replace(SPEC, draft=draft_with(ids=[-1, 2, 30]))
    assert refused(spec).code == "draft-does-not-fit"
    assert preflight(replace(spec, env={"WIRING_EMBEDDING_ID": "1"})) == ()


def test_on_another_release_problems_of_the_layer_ids_are_notes(machine, draft_with):
    machine(sglang="0.5.9")
    notes = preflight(replace(SPEC, draft=draft_with(ids=[-1, 2, 30]), device="cuda", dtype="bfloat16"))
    assert [note.split(" ")[0] for note in notes] == ["SGLang", "layer"] and "0.5.9" in notes[0]


@pytest.mark.parametrize(
    "device, found, code",
    [("cpu", "0.5.9", "sglang-unsupported"), ("cpu", None, "sglang-missing"), ("cuda", None, "sglang-missing")],
)
def test_sglang_must_be_installed_and_on_the_cpu_of_one_release(machine, device, found, code):
    machine(sglang=found)
    error = refused(replace(SPEC, device=device))
    assert (error.code, error.expected, error.found) == (code, "0.5.23", found or "")


def test_too_little_memory(machine):
    need = needed_bytes(SPEC)
    machine(free=10**9)
    error = refused(SPEC)
    assert (error.code, error.found) == ("memory-too-small", "1.0 GB") and error.expected.startswith("about 1.5")
    machine(free=need - 1)
    assert refused(SPEC).code == "memory-too-small"
    for enough in (need, None):  # None: unknown
        machine(free=enough)
        assert preflight(SPEC) == ()


def test_memory_is_estimated_from_the_files_and_the_data_type(tmp_path):
    (tmp_path / "config.json").write_text('{"torch_dtype": "bfloat16"}')
    (tmp_path / "model-1.safetensors").write_bytes(bytes(2000))
    (tmp_path / "model-2.safetensors").write_bytes(bytes(500))
    on_gpu = ServerSpec(tmp_path, device="cuda")
    assert needed_bytes(replace(on_gpu, dtype="float32")) == 5000
    assert needed_bytes(replace(on_gpu, dtype="auto")) == needed_bytes(replace(on_gpu, dtype="bfloat16")) == 2500
    assert needed_bytes(ServerSpec(tmp_path)) == 5000 + 1_500_000_000  # and SGLang's processes
    (tmp_path / "config.json").write_text("{}")
    assert needed_bytes(replace(on_gpu, dtype="float32")) == 2500


def test_start_refuses_before_a_process_exists(machine, tmp_path):
    with pytest.raises(WiringError), start(replace(SPEC, target=tmp_path / "no"), tmp_path / "log"):
        pass
    assert not (tmp_path / "log").exists()


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Put an nvidia-smi on PATH that prints this and exits with this status."""

    def make(prints, status=0):
        command = tmp_path / "nvidia-smi"
        command.write_text(f"#!/bin/sh\ncat <<'END'\n{prints}\nEND\nexit {status}\n")
        command.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return make


@pytest.mark.parametrize(
    ("prints", "status", "count"), [(LIST, 0, 2), ("No devices found.", 0, 0), ("NVIDIA-SMI has failed", 9, 0)]
)
def test_devices_are_those_that_the_driver_lists(driver, prints, status, count):
    driver(prints, status)
    assert visible_gpus() == count


def test_without_the_driver_s_tool_its_device_files_are_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    files = [path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdigit()]
    assert visible_gpus() == (len(files) or (None if Path("/dev/kfd").exists() else 0))


@pytest.mark.parametrize(
    ("chosen", "listed", "count"),
    [
        ("", 8, 0),
        ("-1", 8, 0),
        ("3", 8, 1),
        ("0,1,2,3", 8, 4),
        ("0,-1,2", 8, 1),
        ("GPU-5a,GPU-7b", 8, 2),
        ("0, 1", 8, 2),
        ("MIG-a,MIG-b", 1, 2),
        ("0,1,2,3", 2, 2),
        ("0", None, None),
        ("0", 0, 0),
    ],
)
def test_cuda_visible_devices_hides_devices_as_cuda_reads_it(monkeypatch, chosen, listed, count):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    monkeypatch.setattr(module, "_listed_gpus", lambda: listed)
    assert visible_gpus() == count


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
def test_the_number_of_gpus_that_flags_need_on_this_node(flags, count):
    assert gpus_needed(flags) == count


@pytest.mark.parametrize(
    ("found", "torch", "code", "shown"),
    [
        (0, "2.13.0", "no-gpu", "none"),
        (4, "2.13.0", "too-few-gpus", "4"),
        (8, "2.13.0+cpu", "torch-without-cuda", "torch 2.13.0+cpu"),
    ],
)
def test_missing_gpus_are_refused(machine, monkeypatch, found, torch, code, shown):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine(gpus=found, torch=torch)
    with pytest.raises(WiringError) as error:
        check_gpus(("--tp-size", "8"), "mine.yaml, field engine.device")
    assert (error.value.code, error.value.where) == (code, "mine.yaml, field engine.device")
    assert error.value.found == shown
    assert refused(replace(SPEC, device="cuda", extra_flags=("--tp-size", "8"))).code == code
    assert preflight(SPEC) == ()  # a CPU server needs none of it
    machine(gpus=None)  # unknown
    check_gpus(("--tp-size", "8"))


def test_hidden_devices_are_named_as_hidden(driver, monkeypatch):
    driver(LIST)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(WiringError) as error:
        check_gpus(())
    assert error.value.code == "no-gpu" and "CUDA_VISIBLE_DEVICES=''" in error.value.found

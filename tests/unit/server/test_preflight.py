"""What is refused before a process starts: one sentence each."""

import json
import shutil
import socket
import struct
from dataclasses import replace

import pytest

from wiring.engines.sglang import Speculation
from wiring.errors import WiringError
from wiring.server.launch import ServerSpec, start
from wiring.server.memory import needed_bytes, weight_bytes
from wiring.server.preflight import preflight

ROOM = 10**12


@pytest.fixture
def spec(pair):
    return ServerSpec(pair.target, pair.draft, Speculation(5, 1, 8))


def check(spec, *, free=ROOM, sglang="0.5.23"):
    return preflight(spec, available=lambda device: free, sglang=lambda: sglang, gpus=lambda flags: None)


@pytest.fixture
def draft_with(pair, tmp_path):
    """A copy of the draft whose config is changed; values given as None are taken out."""

    def make(eagle=None, **changes):
        folder = tmp_path / "draft"
        shutil.copytree(pair.draft, folder)
        config = json.loads((folder / "config.json").read_text()) | changes
        config["eagle_config"] |= eagle or {}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return make


def test_a_pair_that_fits_passes_without_notes(spec):
    assert check(spec) == ()
    assert check(replace(spec, draft=None, speculation=None)) == ()


def test_a_draft_in_torch_files_is_held_against_the_target_too(spec, draft_with):
    """SafeAILab's drafts come as pytorch_model.bin, which SGLang loads as well."""
    import torch
    from safetensors.torch import load_file

    draft = draft_with()
    tensors = load_file(draft / "model.safetensors")
    (draft / "model.safetensors").unlink()
    torch.save(tensors, draft / "pytorch_model.bin")
    assert check(replace(spec, draft=draft)) == ()
    size = (draft / "pytorch_model.bin").stat().st_size
    assert weight_bytes(draft, "bfloat16") >= size / 2
    narrow = tensors | {"fc.weight": tensors["fc.weight"][:, :-1].clone()}
    torch.save(narrow, draft / "pytorch_model.bin")
    with pytest.raises(WiringError, match="does not fit the target.*fc takes"):
        check(replace(spec, draft=draft))


def test_paths_that_are_no_model_folders(spec, pair, tmp_path):
    cases = {
        "the target is not a folder": replace(spec, target=tmp_path / "absent"),
        "the draft is not a folder.*found a file": replace(spec, draft=pair.draft / "config.json"),
        "the target has no config.json": replace(spec, target=tmp_path),
    }
    for words, wrong in cases.items():
        with pytest.raises(WiringError, match=words):
            check(wrong)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(WiringError, match="the target has no weights"):
        check(replace(spec, target=tmp_path))


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"hidden_size": 32}, "hidden size"),
        ({"vocab_size": 100}, "vocabulary"),
        ({"eagle": {"eagle_aux_hidden_state_layer_ids": [0, 3]}}, "slot count"),
        ({"eagle": {"eagle_aux_hidden_state_layer_ids": [0, 3, 60]}}, "layer ids.*8 layers"),
    ],
)
def test_a_draft_that_does_not_fit(spec, draft_with, changes, words):
    with pytest.raises(WiringError, match=f"does not fit the target.*{words}"):
        check(replace(spec, draft=draft_with(**changes)))


def test_the_embedding_id_is_right_only_where_its_plugin_is_on(spec, draft_with):
    asked = replace(spec, draft=draft_with(eagle={"eagle_aux_hidden_state_layer_ids": [-1, 2, 5]}))
    with pytest.raises(WiringError, match="layer ids"):
        check(asked)
    assert check(replace(asked, env={"WIRING_EMBEDDING_ID": "1"})) == ()


def test_layer_ids_are_only_noted_where_the_release_may_read_them_otherwise(spec, draft_with):
    asked = replace(
        spec, draft=draft_with(eagle={"eagle_aux_hidden_state_layer_ids": [-1, 2, 5]}), device="cuda", dtype="bfloat16"
    )
    notes = check(asked, sglang="0.5.9")
    assert [note.split(" ")[0] for note in notes] == ["SGLang", "layer"] and "0.5.9" in notes[0]


@pytest.mark.parametrize("found, words", [("0.5.9", "cannot run with this SGLang release"), (None, "not installed")])
def test_the_cpu_server_takes_one_release(spec, found, words):
    with pytest.raises(WiringError, match=f"{words}.*expected 0.5.23"):
        check(spec, sglang=found)


def test_sglang_must_be_installed_on_a_gpu_too(spec):
    with pytest.raises(WiringError, match="not installed"):
        check(replace(spec, device="cuda"), sglang=None)


def test_a_port_that_is_taken(spec):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen(1)
        port = holder.getsockname()[1]
        with pytest.raises(WiringError, match=f"port {port}: the port is taken"):
            check(replace(spec, port=port))
    assert check(replace(spec, port=port)) == ()


def test_too_little_memory_names_both_sides(spec):
    need = needed_bytes(spec.target, spec.draft, "float32", "cpu")
    with pytest.raises(WiringError, match=r"memory does not suffice.*expected about 1\.5 GB free, found 1\.0 GB"):
        check(spec, free=10**9)
    with pytest.raises(WiringError):
        check(spec, free=need - 1)
    assert check(spec, free=need) == ()
    assert check(spec, free=None) == ()  # unknown is not too little


def test_memory_is_counted_from_what_the_files_hold(pair, tmp_path):
    def file(name, tensors):
        header, at = {"__metadata__": {"format": "pt"}}, 0
        for tensor, (kind, size) in tensors.items():
            header[tensor] = {"dtype": kind, "shape": [size], "data_offsets": [at, at := at + size]}
        packed = json.dumps(header).encode()
        (tmp_path / name).write_bytes(struct.pack("<Q", len(packed)) + packed + bytes(at))

    file("model-1.safetensors", {"a": ("BF16", 2000), "b": ("F32", 400)})
    file("model-2.safetensors", {"c": ("BF16", 200), "ids": ("I64", 80)})
    stored = 2000 + 400 + 200 + 80
    assert weight_bytes(tmp_path, "float32") == 4000 + 400 + 400 + 80  # bfloat16 doubles, whole numbers stay
    assert weight_bytes(tmp_path, "bfloat16") == 2000 + 200 + 200 + 80
    assert stored < weight_bytes(tmp_path, "auto") < stored + 1000  # the files as they are
    (tmp_path / "model-2.safetensors").write_bytes(b"not a header")
    assert weight_bytes(tmp_path, "float32") == 4400 + 12
    (tmp_path / "config.json").write_text(
        json.dumps({"num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 64})
    )
    kv = 3 * 4 * 2 * (8 * 2)  # layers x bytes x (key and value) x (head size x heads)
    on_cpu = needed_bytes(tmp_path, None, "float32", "cpu")
    (tmp_path / "config.json").unlink()
    assert on_cpu - needed_bytes(tmp_path, None, "float32", "cpu") == 8192 * kv
    assert needed_bytes(tmp_path, None, "float32", "cuda") == 4412


def test_gpus_are_asked_for_by_the_flags_of_a_gpu_server_alone(spec):
    asked = []

    def gpus(flags):
        asked.append(flags)
        raise WiringError("no such GPU")

    assert preflight(spec, available=lambda device: ROOM, sglang=lambda: "0.5.23", gpus=gpus) == ()
    assert asked == []
    with pytest.raises(WiringError, match="no such GPU"):
        preflight(replace(spec, device="cuda", extra_flags=("--tp-size", "8")), gpus=gpus)
    assert asked == [("--tp-size", "8")]


def test_start_refuses_before_a_process_exists(spec, tmp_path):
    wrong = replace(spec, target=tmp_path / "no")
    with pytest.raises(WiringError, match="not a folder"), start(wrong, tmp_path / "log"):
        pass
    assert not (tmp_path / "log").exists()

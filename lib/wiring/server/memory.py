"""Will it fit? Memory that a server needs, estimated from its files, against what the machine has left."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from pathlib import Path

_WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2}
_BITS = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}  # safetensors' names of the types that --dtype converts
_PROCESSES = 1_500_000_000  # a CPU server's processes before any weight: measured 1.4 to 1.6 GB with SGLang 0.5.23
_KV_TOKENS = 8192
_MAX_HEADER = 100_000_000  # safetensors' own limit


def needed_bytes(target: Path, draft: Path | None, dtype: str, device: str) -> int:
    """A low estimate of the memory that a server takes: weights as loaded, and on the CPU its processes and KV cache.

    On a GPU only the weights count, over all devices together: SGLang sizes its cache by what is left.
    """
    weights = sum(weight_bytes(folder, dtype) for folder in (target, draft) if folder is not None)
    if device != "cpu":
        return weights
    return weights + _PROCESSES + _KV_TOKENS * _kv_bytes_per_token(target, dtype)


def weight_bytes(folder: Path, dtype: str) -> int:
    """Bytes of the weights of a model folder once loaded as `dtype`; "auto" keeps them as stored.

    Only the headers of safetensors files are read. Files that cannot be read count with their size: loading says
    better than this what is wrong with them.
    """
    width = _WIDTH.get(dtype)
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    return sum(_loaded_bytes(file, width) for file in files)


def available_bytes(device: str) -> int | None:
    """Memory free now: of the machine for the CPU, of all visible devices together for CUDA; None if unknown."""
    if device == "cpu":
        import psutil

        return psutil.virtual_memory().available
    query = shutil.which("nvidia-smi")
    if query is None:
        return None
    try:
        command = [query, "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
        told = subprocess.run(command, capture_output=True, text=True, timeout=20)
        return sum(int(line) for line in told.stdout.split()) * 2**20 or None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def _loaded_bytes(file: Path, width: int | None) -> int:
    size = file.stat().st_size
    if width is None:
        return size
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            header = json.loads(opened.read(min(length, _MAX_HEADER)))
        entries = [entry for name, entry in header.items() if name != "__metadata__"]
        spans = [(entry["dtype"], entry["data_offsets"][1] - entry["data_offsets"][0]) for entry in entries]
    except (struct.error, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return size
    return sum(span * width // _BITS[kind] if kind in _BITS else span for kind, span in spans)


def _kv_bytes_per_token(target: Path, dtype: str) -> int:
    """Bytes of KV cache per token: the latent vector with MLA, keys and values of every KV head otherwise."""
    try:
        config = json.loads((target / "config.json").read_text(encoding="utf-8"))
        layers, width = int(config["num_hidden_layers"]), _WIDTH.get(dtype, 2)
        if config.get("kv_lora_rank"):
            return layers * width * (int(config["kv_lora_rank"]) + int(config["qk_rope_head_dim"]))
        heads = int(config["num_attention_heads"])
        head_dim = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
        return layers * width * 2 * head_dim * int(config.get("num_key_value_heads") or heads)
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
        return 0

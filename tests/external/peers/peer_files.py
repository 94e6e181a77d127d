"""What a test writes for a peer program, in the formats that the peer reads, and what it reads of the answer."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from planted_texts import NORM_EPS, Target, Text
from safetensors.torch import load_file, save_file
from torch import Tensor

PROGRAMS = Path(__file__).parent / "programs"
VARIABLE = "WIRING_PEERS_PYTHON"
LAYERS = 12  # of the target


def peers_python() -> Path:
    """The Python that has the peers; it need not exist."""
    return Path(os.environ.get(VARIABLE) or Path(__file__).parents[3] / ".venv-peers" / "bin" / "python")


def why_not() -> str:
    """Why the peers cannot be run, or "" where they can."""
    if peers_python().exists():
        return ""
    return f"the other trainers are not installed ({peers_python()}): make peers, or name their Python in {VARIABLE}"


def environment() -> dict[str, str]:
    """Of a peer program: no compiler, no network, no CUDA device, and none of this project's paths."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    off = dict.fromkeys(("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "HF_HUB_OFFLINE", "PYTHONUNBUFFERED"), "1")
    return kept | off | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": kept.get("OMP_NUM_THREADS", "1")}


def run_program(name: str, cases: Path) -> None:
    """Run a peer program over all cases; its output goes to a log in the folder and, where it fails, on stderr."""
    command = [str(peers_python()), str(PROGRAMS / name), str(cases)]
    ran = subprocess.run(command, env=environment(), cwd=cases, capture_output=True, text=True, timeout=540)
    (cases / "program.log").write_text(ran.stdout + ran.stderr)
    if ran.returncode:
        print(ran.stderr[-4000:], file=sys.stderr)
        raise RuntimeError(f"{name} ended with status {ran.returncode}")


def write_target(folder: Path, target: Target) -> None:
    """Config and the three tensors that a trainer takes from a target."""
    vocab, width = target.head.shape
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "rms_norm_eps": NORM_EPS,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {"model.embed_tokens.weight": target.embedding, "lm_head.weight": target.head}
    tensors["model.norm.weight"] = target.norm
    save_file(tensors, folder / "model.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_draft(case: Path, config: dict, tensors: dict[str, Tensor], settings: dict) -> None:
    """The draft's config and tensors; the peer's own code writes the checkpoint from them."""
    (case / "config.json").write_text(json.dumps(config))
    (case / "settings.json").write_text(json.dumps(settings))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, case / "weights.safetensors")


def write_specforge_states(folder: Path, target: Target, texts: list[Text]) -> None:
    """SpecForge's offline files: the last hidden state is normed; every second file is compressed."""
    rows = folder / "rows_0-2000"
    rows.mkdir(parents=True)
    for i, text in enumerate(texts):
        content = io.BytesIO()
        torch.save(
            {
                "input_ids": text.tokens,
                "loss_mask": text.mask,
                "aux_hidden_state": text.states.flatten(1)[None],
                "hidden_state": target.normed(text.pre_norm)[None],
            },
            content,
        )
        if i % 2:
            (rows / f"data_{i}.ckpt.gz").write_bytes(gzip.compress(content.getvalue(), 1))
        else:
            (rows / f"data_{i}.ckpt").write_bytes(content.getvalue())


def write_speculators_states(case: Path, texts: list[Text]) -> None:
    """speculators' hidden states, the last slot before the norm, and the table that the program stores as Arrow."""
    folder = case / "states" / "hidden_states"
    folder.mkdir(parents=True)
    for i, text in enumerate(texts):
        stored = torch.cat([text.states, text.pre_norm[:, None]], 1)  # [N, n + 1, H]
        save_file({"hidden_states": stored, "token_ids": text.tokens}, folder / f"hs_{i}.safetensors")
    table = {
        "input_ids": [text.tokens.tolist() for text in texts],
        "loss_mask": [text.mask.tolist() for text in texts],
        "seq_len": [len(text.tokens) for text in texts],
    }
    (case / "states.json").write_text(json.dumps(table))


def read_result(case: Path) -> tuple[dict, dict[str, Tensor]]:
    """Counts and logits of a case. Raises AssertionError with the peer's own traceback where it failed."""
    failed = case / "failed.txt"
    assert not failed.exists(), failed.read_text()
    return json.loads((case / "counts.json").read_text()), load_file(case / "logits.safetensors")


def in_bfloat16(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights in bfloat16, as SpecForge trains and stores them; ids as they are."""
    return {name: t.bfloat16() if t.is_floating_point() else t for name, t in tensors.items()}

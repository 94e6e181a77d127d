"""Writers of training states, each as its producer leaves them on disk; nothing here uses the package.

Every writer takes a folder and the sequences and returns the path to open. What a format cannot say is lost: a reader
gives back ones for the loss mask where `no_mask` is set, and `norm` is all that it can know of the last hidden state.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor


@dataclass(frozen=True)
class Saved:
    """What is written: tokens [N], mask [N] int64, states [N, n, H], last [N, H]."""

    tokens: Tensor
    mask: Tensor
    states: Tensor
    last: Tensor

    @property
    def wide(self) -> Tensor:
        return self.states.flatten(1)  # [N, n*H]


def sequence(
    length: int, slots: int = 3, width: int = 4, seed: int = 0, dtype=torch.bfloat16, vocab: int = 50
) -> Saved:
    """A random sequence; its mask has both values wherever it is longer than one token."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.randint(0, 2, (length,), generator=g)
    mask[-1:], mask[:-1][:1] = 1, 0
    return Saved(
        torch.randint(0, vocab, (length,), generator=g),
        mask,
        torch.randn(length, slots, width, generator=g).to(dtype),
        torch.randn(length, width, generator=g).to(dtype),
    )


def save(path: Path, value: object) -> Path:
    """torch.save, through gzip where the name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.name.endswith(".gz"):
        with gzip.open(path, "wb") as file:
            torch.save(value, file)
    else:
        torch.save(value, path)
    return path


def specforge_record(s: Saved) -> dict:
    """SpecForge 0.2.0, scripts/prepare_hidden_states.py."""
    return {
        "input_ids": s.tokens,
        "loss_mask": s.mask,
        "hidden_state": s.last[None],
        "aux_hidden_state": s.wide[None],
    }


def normalised_record(s: Saved) -> dict:
    """SpecForge 0.2.0, algorithms/eagle3/data.py: other names for the same, in a batch of one."""
    mask = s.mask.clone()
    mask[-1] = 0
    return {
        "attention_mask": torch.ones_like(mask)[None],
        "loss_mask": mask[None],
        "target": s.last[None],
        "hidden_state": s.wide[None],
        "input_ids": s.tokens[None],
    }


def v0_record(s: Saved) -> dict:
    return {"input_ids": s.tokens, "loss_mask": s.mask, "hidden_state": s.wide, "target": s.last}


def v1_record(s: Saved) -> dict:
    return {
        "input_ids": s.tokens,
        "hidden_states": [*(part.contiguous() for part in s.states.unbind(1)), s.last],
        "loss_mask": s.mask,
    }


def modelopt_record(s: Saved, **more: object) -> dict:
    """ModelOpt, examples/speculative_decoding/collect_hidden_states; `loss_mask` and the flag only where given."""
    return {
        "input_ids": s.tokens,
        "hidden_states": s.last,
        "aux_hidden_states": s.wide,
        "conversation_id": "c1",
        **more,
    }


def tensorrt_record(s: Saved, name: str = "hidden_state_features", number: int = 1) -> list[dict]:
    """TensorRT-LLM, _torch/speculative/save_hidden_state.py; newer ones call the states aux_hidden_states."""
    return [{"id": number, "input_ids": s.tokens, "hidden_state": s.last, name: s.wide}]


def run_lengths(mask: Tensor) -> str:
    """TorchSpec's packed mask, written by walking along it: zeros first."""
    runs, value = [0], 0
    for entry in mask.tolist():
        if entry != value:
            runs.append(0)
            value = entry
        runs[-1] += 1
    return ",".join(map(str, runs))


def torchspec_record(s: Saved, data_id: str, last: str = "last_hidden_states") -> dict:
    """TorchSpec, torchspec/offline/dataset.py."""
    return {
        "input_ids": s.tokens[None],
        "hidden_states": s.wide[None],
        last: s.last[None],
        "data_id": data_id,
        "packed_loss_mask": run_lengths(s.mask),
        "metadata": {"source": "a test"},
    }


def _numbered(record: Callable[[Saved], object], pattern: str) -> Callable[[Path, Sequence[Saved]], Path]:
    def write(folder: Path, sequences: Sequence[Saved]) -> Path:
        for number, each in enumerate(sequences):
            save(folder / pattern.format(number), record(each))
        return folder

    return write


def write_v1(folder: Path, sequences: Sequence[Saved]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data_config.json").write_text("{}")
    torch.save({"token_freq": torch.ones(3)}, folder / "token_freq.pt")
    return _numbered(v1_record, "data_{}.pt")(folder, sequences)


def write_torchspec(folder: Path, sequences: Sequence[Saved], prenorm: bool | None = True, **record: str) -> Path:
    """A whole dataset; rows alternate between the splits."""
    (folder / "samples").mkdir(parents=True, exist_ok=True)
    description = {"version": 1, "last_hidden_states_prenorm": prenorm}
    (folder / "dataset.json").write_text(json.dumps(description, indent=2) + "\n")
    with (folder / "manifest.jsonl").open("a") as manifest:
        for number, each in enumerate(sequences):
            data_id = f"conversation-{number}"
            file = f"samples/{hashlib.sha1(data_id.encode()).hexdigest()}.pt"
            torch.save(torchspec_record(each, data_id, **record), folder / file)
            row = {"split": ("train", "eval")[number % 2], "data_id": data_id, "file": file}
            manifest.write(json.dumps(row) + "\n")
    return folder


def arrow_stream(columns: dict[str, Sequence[Sequence[int]]], kind: str = "int64", batch: int = 1000) -> bytes:
    """An Arrow stream of list columns, `batch` rows to a batch as `datasets` writes them."""
    import nanoarrow as na
    import numpy as np
    from nanoarrow.ipc import StreamWriter

    element = {"int64": na.int64(), "int32": na.int32(), "bool": na.bool_()}[kind]
    schema = na.struct({name: na.list_(element) for name in columns})
    rows = len(next(iter(columns.values())))
    out = io.BytesIO()
    with StreamWriter.from_writable(out) as writer:
        for first in range(0, rows, batch):
            lists = []
            for values in columns.values():
                part = values[first : first + batch]
                flat = np.array([entry for row in part for entry in row], kind)
                data = np.packbits(flat, bitorder="little") if kind == "bool" else flat
                child = na.c_array_from_buffers(element, len(flat), [None, data])
                limits = np.cumsum([0, *map(len, part)]).astype("int32")
                lists.append(na.c_array_from_buffers(na.list_(element), len(part), [None, limits], children=[child]))
            length = min(batch, rows - first)
            writer.write_array(na.c_array_from_buffers(schema, length, [None], children=lists))
    return out.getvalue()


def write_speculators(
    folder: Path,
    sequences: Sequence[Saved],
    wanted: Sequence[int] | None = None,
    batch: int = 2,
    shards: int = 1,
) -> Path:
    """A prepared dataset and the hidden states of the rows `wanted` (all); lock files stay behind, as they do."""
    (folder / "hidden_states").mkdir(parents=True, exist_ok=True)
    names = [f"data-{i:05d}-of-{shards:05d}.arrow" for i in range(shards)]
    size = -(-len(sequences) // shards)
    for i, name in enumerate(names):
        part = sequences[i * size : (i + 1) * size]
        columns = {"input_ids": [s.tokens.tolist() for s in part], "loss_mask": [s.mask.tolist() for s in part]}
        (folder / name).write_bytes(arrow_stream(columns, batch=batch))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    torch.save(torch.ones(3), folder / "token_freq.pt")
    for row in range(len(sequences)) if wanted is None else wanted:
        path = folder / "hidden_states" / f"hs_{row}.safetensors"
        save_file(speculators_payload(sequences[row]), path)
        path.with_name(path.name + ".lock").touch()
    return folder


def speculators_payload(s: Saved) -> dict[str, Tensor]:
    stacked = torch.cat([s.states, s.last[:, None]], 1)  # [N, n+1, H]
    return {"hidden_states": stacked.contiguous(), "token_ids": s.tokens.contiguous()}


@dataclass(frozen=True)
class Writer:
    """One format: how a folder of it is written, and what a reader can know."""

    write: Callable[[Path, Sequence[Saved]], Path]
    format: str
    norm: str
    no_mask: bool = False
    last_not_counted: bool = False  # the trainer has cleared the last mask entry


WRITERS = {
    "specforge": Writer(_numbered(specforge_record, "rows_0-2000/data_{}.ckpt"), "specforge", "post"),
    "specforge gz": Writer(_numbered(specforge_record, "rows_0-2000/data_{}.ckpt.gz"), "specforge", "post"),
    "normalised": Writer(
        _numbered(normalised_record, "sample-{}.ckpt"), "specforge-normalised", "post", last_not_counted=True
    ),
    "v0": Writer(_numbered(v0_record, "data_{}.pt"), "speculators-v0", "post"),
    "v1": Writer(write_v1, "speculators-v1", "pre"),
    "speculators": Writer(write_speculators, "speculators", "pre"),
    "modelopt": Writer(_numbered(modelopt_record, "{}.pt"), "modelopt", "undecided", no_mask=True),
    "modelopt masked": Writer(
        _numbered(lambda s: modelopt_record(s, loss_mask=s.mask, hidden_states_prenorm=True), "{}.pt"),
        "modelopt",
        "pre",
    ),
    "modelopt normed": Writer(
        _numbered(lambda s: modelopt_record(s, hidden_states_prenorm=False), "{}.pt"), "modelopt", "post", no_mask=True
    ),
    "tensorrt": Writer(_numbered(tensorrt_record, "dp_0_{}.pt"), "tensorrt-llm", "undecided", no_mask=True),
    "tensorrt new": Writer(
        _numbered(lambda s: tensorrt_record(s, "aux_hidden_states"), "dp_0_{}.pt"),
        "tensorrt-llm",
        "undecided",
        no_mask=True,
    ),
    "torchspec": Writer(write_torchspec, "torchspec", "pre"),
    "torchspec target": Writer(lambda f, s: write_torchspec(f, s, False, last="target"), "torchspec", "post"),
    "torchspec silent": Writer(lambda f, s: write_torchspec(f, s, None), "torchspec", "undecided"),
}

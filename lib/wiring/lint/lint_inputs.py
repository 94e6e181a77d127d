"""Inputs of the checks, read once: the draft's and the target's files, a server's arguments, both layouts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.checkpoints.config_fields import check_fields
from wiring.checkpoints.draft_config import Eagle3Config
from wiring.checkpoints.draft_files import DraftCheckpoint, checkpoint_from
from wiring.checkpoints.draft_producers import canonical, detect_producer
from wiring.checkpoints.target_files import TargetConfig
from wiring.checkpoints.tensor_files import has_weights, read_checkpoint, read_json, refuse_broken_link
from wiring.engines.resolve import Engine, ServedLayout
from wiring.errors import UnreadForward
from wiring.lint.trained_layout import TrainedLayout

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "config.json"
# Arguments that the checks read, by SGLang's names; `max_model_len` is vLLM's.
READ = frozenset(
    {
        "context_length",
        "disable_cuda_graph",
        "dtype",
        "kv_cache_dtype",
        "max_model_len",
        "model_path",
        "quantization",
        "speculative_algorithm",
        "speculative_draft_kv_cache_dtype",
        "speculative_draft_model_path",
        "speculative_draft_model_quantization",
        "speculative_draft_window_size",
        "speculative_eagle_topk",
        "speculative_num_draft_tokens",
        "speculative_num_steps",
        "tp",
        "tp_size",
    }
)


@dataclass(frozen=True)
class Changed:
    """An argument that a server resolved to another value than requested."""

    name: str
    asked: Any
    resolved: Any
    reason: str = ""


@dataclass(frozen=True)
class ServerView:
    """Arguments of a running or planned server.

    `arguments` have the names of SGLang's /server_info (`speculative_num_steps`, `tp_size`): resolved values for a
    running server, requested ones for a planned one. `changed` lists the arguments that a running server changed.
    `where` names the source of the arguments.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    changed: tuple[Changed, ...] = ()
    running: bool = False
    version: str | None = None
    where: str = "the server's arguments"

    def get(self, name: str) -> Any:
        """Return the argument's value; None if it is not given or leaves the choice to SGLang ("auto")."""
        value = self.arguments.get(name)
        return None if value in ("auto", "") else value

    def at(self, name: str) -> str:
        """Return the place of an argument for a finding."""
        return f"{self.where}: {name}"

    @property
    def cuda_graphs(self) -> bool:
        """Whether decoding replays CUDA graphs, SGLang's default."""
        return not self.get("disable_cuda_graph")

    @property
    def tp_size(self) -> int:
        """The number of ranks that share the target."""
        return int(self.get("tp_size") or self.get("tp") or 1)


@dataclass(frozen=True)
class DraftView:
    """A draft's config and, if the folder holds weights, its tensors as stored.

    `shape` and `checkpoint` are what its producer's reader makes of both; None for a forward pass that is not
    implemented, with the reason in `unread`.
    """

    folder: Path
    config: Mapping[str, Any]
    producer: str
    shape: Eagle3Config | None = None
    unread: str = ""
    tensors: Mapping[str, Tensor] | None = None
    files: Mapping[str, Path] | None = None
    checkpoint: DraftCheckpoint | None = None

    @property
    def where(self) -> str:
        """The config's path."""
        return str(self.folder / CONFIG)

    def at(self, name: str) -> str:
        """Return the place of a field of the config for a finding."""
        return f"{self.where}: {name}"

    @property
    def plain_config(self) -> dict[str, Any]:
        """The config without its quantization, which does not change the shapes that are checked."""
        return {key: value for key, value in self.config.items() if key != "quantization_config"}

    @property
    def layer(self) -> Mapping[str, Any]:
        """The part of the config that describes the layers; nested in the format of speculators."""
        nested = self.config.get("transformer_layer_config")
        return nested if self.producer == "speculators" and isinstance(nested, dict) else self.config

    @property
    def width(self) -> int | None:
        """Features of one captured state by the config."""
        return self.config.get("target_hidden_size") or self.layer.get("hidden_size")

    @property
    def stored_layers(self) -> int:
        """Number of layers with tensors in the file; 0 without weights."""
        found = (re.match(r"layers\.(\d+)\.", name) for name in self.named)
        return max((int(match[1]) + 1 for match in found if match), default=0)

    @property
    def slots(self) -> int | None:
        """Number of states that `fc` takes by its tensor; None without the tensor or a width."""
        fc = self.named.get("fc.weight")
        if fc is None or fc.dim() != 2 or not self.width:
            return None
        states, rest = divmod(fc.shape[1], self.width)
        return states if states and not rest else None

    @property
    def vocabulary(self) -> tuple[int, int] | None:
        """Sizes of the draft's and the target's vocabulary by the config; None if it has neither."""
        if self.shape is not None:
            return self.shape.draft_vocab_size, self.shape.vocab_size
        size = self.layer.get("vocab_size")
        return (self.config.get("draft_vocab_size") or size, size) if size else None

    @cached_property
    def named(self) -> dict[str, Tensor]:
        """The tensors by canonical name; empty without weights."""
        return {canonical(name): tensor for name, tensor in (self.tensors or {}).items()}

    def tensor_where(self, name: str) -> str:
        """Return file and stored name of the tensor with this canonical name."""
        stored = next((stored for stored in self.tensors or {} if canonical(stored) == name), name)
        return f"{(self.files or {}).get(stored, self.folder)}: tensor {stored}"

    def as_sglang_reads_it(self) -> DraftCheckpoint:
        """Read config and tensors as SGLang does. Raises WiringError if SGLang has no such forward pass."""
        return self._checkpoint("sglang")

    def _checkpoint(self, producer: str) -> DraftCheckpoint:
        return checkpoint_from(
            self.plain_config,
            self.tensors or {},
            folder=self.folder,
            producer=producer,
            strict=False,
            files=self.files,
            where=self.where,
        )

    def interpreted(self) -> DraftView:
        """Return the view with `shape` and `checkpoint`, or with the reason in `unread`."""
        try:
            shape = Eagle3Config.from_dict(self.plain_config, self.where, self.producer)
        except UnreadForward as error:
            return replace(self, unread=str(error))
        if self.tensors is None:
            return replace(self, shape=shape)
        checkpoint = self._checkpoint(self.producer)
        return replace(self, shape=checkpoint.shape, checkpoint=checkpoint)


@dataclass(frozen=True)
class WrongSize:
    """A size in the draft's config that its tensors contradict.

    `stated` describes the config ("is 128", "is not in the config"); the tensors of these names have the size `meant`.
    """

    field: str
    stated: str
    meant: int
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class View:
    """One draft on one engine, with everything that checks read.

    `served` is None, with the reason in `unserved`, if no target is given or no rule is known for it. With a
    `wrong_size`, `draft` has the corrected size. Checks that need a target or a server use `target` and `server`.
    """

    engine: Engine
    draft: DraftView
    given_target: TargetConfig | None = None
    served: ServedLayout | None = None
    unserved: str = ""
    trained: TrainedLayout = TrainedLayout(None, "")
    given_server: ServerView | None = None
    wrong_size: WrongSize | None = None

    @property
    def sglang(self) -> bool:
        """Whether the engine is SGLang."""
        return self.engine.name == "sglang"

    @property
    def target(self) -> TargetConfig:
        """The target, for checks that need one."""
        assert self.given_target is not None
        return self.given_target

    @property
    def server(self) -> ServerView:
        """The server's arguments, for checks that need them."""
        assert self.given_server is not None
        return self.given_server


def read_draft_view(folder: Path) -> DraftView:
    """Read a draft's config and, if there are any, all its tensors.

    Raises WiringError if a file is missing or damaged, or if a field of the config cannot be read.
    """
    config = read_json(folder / CONFIG, "the draft's config")
    check_fields(config, folder / CONFIG)
    tensors, files = None, None
    if has_weights(folder, pickled=True):
        tensors, files = read_checkpoint(folder)
    else:
        refuse_broken_link(folder)
    producer = detect_producer(config, tensors or ())
    return DraftView(folder, config, producer, tensors=tensors, files=files).interpreted()

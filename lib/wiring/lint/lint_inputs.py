"""Everything that the checks look at, read once: configs, tensors, the served layout, the trained one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.checkpoints.draft_config import Eagle3Config
from wiring.checkpoints.draft_files import DraftCheckpoint, checkpoint_from
from wiring.checkpoints.draft_producers import canonical, detect_producer
from wiring.checkpoints.target_files import TargetConfig, read_rows, read_target_config
from wiring.checkpoints.tensor_files import has_weights, read_checkpoint, read_json, refuse_broken_link
from wiring.engines.resolve import Engine, ServedLayout
from wiring.errors import UnreadForward, WiringError
from wiring.lint.config_fields import check_fields
from wiring.lint.server_arguments import ServerView
from wiring.lint.trained_layout import Trained

if TYPE_CHECKING:
    from torch import Tensor

    from wiring.lint.wrong_size import WrongSize

CONFIG = "config.json"


@dataclass(frozen=True)
class DraftView:
    """A draft's config and, where the folder holds them, its tensors (by canonical name, as stored).

    `shape` and `checkpoint` are how its producer reads it; None where that forward pass is not known here, and
    `unread` then says why.
    """

    folder: Path
    config: Mapping[str, Any]
    producer: str
    shape: Eagle3Config | None
    unread: str = ""
    tensors: Mapping[str, Tensor] | None = None
    files: Mapping[str, Path] | None = None
    checkpoint: DraftCheckpoint | None = None

    @property
    def where(self) -> str:
        """The config's path."""
        return str(self.folder / CONFIG)

    @property
    def plain_config(self) -> dict[str, Any]:
        """The config without its quantisation, which has nothing to do with the shapes that are checked."""
        return {key: value for key, value in self.config.items() if key != "quantization_config"}

    @property
    def layer(self) -> Mapping[str, Any]:
        """The part of the config that describes the layers: speculators nests it."""
        nested = self.config.get("transformer_layer_config")
        return nested if self.producer == "speculators" and isinstance(nested, dict) else self.config

    @property
    def width(self) -> int | None:
        """Features of one captured state, as the config has them."""
        return self.config.get("target_hidden_size") or self.layer.get("hidden_size")

    @property
    def held_layers(self) -> int:
        """How many layers the file holds tensors of; 0 without any."""
        found = (re.match(r"layers\.(\d+)\.", name) for name in self.named)
        return max((int(match[1]) + 1 for match in found if match), default=0)

    @property
    def slots(self) -> int | None:
        """How many states `fc` takes, where the file tells it."""
        fc = self.named.get("fc.weight")
        if fc is None or fc.dim() != 2 or not self.width:
            return None
        states, rest = divmod(fc.shape[1], self.width)
        return states if states and not rest else None

    @property
    def vocabulary(self) -> tuple[int, int] | None:
        """Ids that the draft can say, and ids of the target, as the config has them; None where it does not say."""
        if self.shape is not None:
            return self.shape.draft_vocab_size, self.shape.vocab_size
        size = self.layer.get("vocab_size")
        return (self.config.get("draft_vocab_size") or size, size) if size else None

    @cached_property
    def named(self) -> dict[str, Tensor]:
        """The tensors by canonical name; empty without weights."""
        return {canonical(name): tensor for name, tensor in (self.tensors or {}).items()}

    def tensor_where(self, name: str) -> str:
        """File and tensor, as they are called on disk."""
        for stored in self.tensors or {}:
            if canonical(stored) == name:
                return f"{(self.files or {}).get(stored, self.folder)}: tensor {stored}"
        return f"{self.folder}: tensor {name}"

    def as_sglang_reads_it(self) -> DraftCheckpoint:
        """Config and tensors by SGLang's reading. Raises WiringError where SGLang has no such forward pass."""
        return checkpoint_from(
            self.plain_config,
            self.tensors or {},
            folder=self.folder,
            producer="sglang",
            strict=False,
            files=self.files,
            where=self.where,
        )


@dataclass(frozen=True)
class TargetView:
    """A target's config; single rows of its weights where the folder holds safetensors."""

    config: TargetConfig
    weights: bool

    @property
    def where(self) -> str:
        """The config's path."""
        return str(self.config.folder / CONFIG)

    @property
    def text(self) -> Mapping[str, Any]:
        """The part of the config that describes the language model."""
        nested = self.config.raw.get("text_config")
        return nested if isinstance(nested, dict) else self.config.raw

    def rows(self, name: str, rows: Sequence[int]) -> Tensor:
        """Rows [n, H] of the embedding or the head, as stored."""
        return read_rows(self.config.folder, name, rows)


@dataclass(frozen=True)
class View:
    """One draft on one engine. `served` is None, and `unserved` says why, where no rule or no target is known."""

    engine: Engine
    draft: DraftView
    target: TargetView | None = None
    served: ServedLayout | None = None
    unserved: str = ""
    trained: Trained = Trained(None, "")
    server: ServerView | None = None
    wrong_size: WrongSize | None = None  # `draft` is then read as if it stood right

    @property
    def sglang(self) -> bool:
        """Whether SGLang serves it."""
        return self.engine.name == "sglang"


def read_draft_view(folder: Path) -> DraftView:
    """Read a draft's config and, where there are any, all its tensors.

    Raises WiringError when a file is missing or damaged, and when the config holds sizes that are none.
    """
    config = read_json(folder / CONFIG, "the draft's config")
    check_fields(config, folder / CONFIG)
    if has_weights(folder, pickled=True):
        return draft_view(folder, config, *read_checkpoint(folder))
    refuse_broken_link(folder)
    return draft_view(folder, config, None, None)


def draft_view(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor] | None, files: Mapping[str, Path] | None
) -> DraftView:
    """A config and tensors (None without weights) as `read_draft_view` gives them; raises WiringError as it does."""
    producer = detect_producer(config, tensors or ())
    view = DraftView(folder, config, producer, None, "", tensors, files)
    try:
        shape = Eagle3Config.from_dict(view.plain_config, view.where, producer)
    except UnreadForward as error:
        return DraftView(folder, config, producer, None, str(error), tensors, files)
    checkpoint = None
    if tensors is not None:
        checkpoint = checkpoint_from(
            view.plain_config, tensors, folder=folder, producer=producer, strict=False, files=files, where=view.where
        )
        shape = checkpoint.shape
    return DraftView(folder, config, producer, shape, "", tensors, files, checkpoint)


def read_target_view(folder: Path) -> TargetView:
    """Read a target's config. Raises WiringError when it is missing or says no size."""
    if not folder.is_dir():
        raise WiringError("the target is not a folder", where=folder, remedy="Check the path")
    config = read_target_config(folder)
    check_fields(config.raw, folder / CONFIG)
    return TargetView(config, has_weights(folder))

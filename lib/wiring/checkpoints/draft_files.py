"""Read an EAGLE-3 draft checkpoint of any producer; account for every tensor, and say what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.checkpoints.draft_check import Stored, check_config, check_tensors, check_vocabulary, fitted
from wiring.checkpoints.draft_config import DEFAULT_SLOTS, IDS, Eagle3Config, recorded_ids
from wiring.checkpoints.draft_producers import canonical, detect_producer
from wiring.checkpoints.draft_sharing import sharing
from wiring.checkpoints.file_findings import Finding
from wiring.checkpoints.tensor_files import read_checkpoint, read_json
from wiring.engines.misplaced_layer_ids import misplaced_layer_ids
from wiring.engines.trainers import trained_layout
from wiring.errors import WiringError
from wiring.layers import Layout

if TYPE_CHECKING:
    from torch import Tensor

_CONFIG = "config.json"
_NAMED = 3  # findings that an error spells out


@dataclass(frozen=True)
class DraftCheckpoint:
    """A draft: its config as read, its tensors by canonical name, and what the reader makes of them.

    Names are `layers.{i}.`, `fc.weight`, `fc_norm.{i}.weight`, `input_norm.weight`, `norm.weight`, `lm_head.weight`,
    `embed_tokens.weight`, `d2t` (int64 offsets [Vd]) and `t2d` (bool [V]); other types are as stored.
    """

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    shape: Eagle3Config
    producer: str
    findings: tuple[Finding, ...] = ()

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that make a number wrong or impossible."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    def layout_hint(self, num_layers: int) -> tuple[Layout | None, str]:
        """The layout that the draft itself records, by its producer's dialect, and in words where that comes from.

        `num_layers` is the target's. Dialects and defaults are those of `wiring.engines.trainers`: of the recorded
        version of speculators, and of the newest code of the others, whose files do not say which it was. None where
        the ids do not say it: other ids than slots, none and another slot count than 3, or a reading ("sglang") that
        depends on the target's architecture.
        """
        ids, where = recorded_ids(self.config, self.producer)
        slots = self.shape.num_slots
        if ids is None:
            if not self.config.get(IDS) and (stray := misplaced_layer_ids(self.config)):
                return None, f"ids {stray[1]} stand under {stray[0]}, where no trainer writes what was trained"
            if slots != DEFAULT_SLOTS:
                return None, f"no {where} in the config, and no default for {slots} slots"
        elif len(ids) != slots:
            return None, f"{where} names {len(ids)} layers, fc takes {slots} states"
        if self.producer == "sglang":
            why = f"{where} {list(ids)}" if ids else f"no {where} in the config"
            return None, f"{why}: what SGLang makes of that depends on the target (wiring.engines.resolve)"
        version = self.config.get("speculators_version") if self.producer == "speculators" else None
        try:
            layout, why = trained_layout(self.producer, version, ids, num_layers)
        except WiringError as error:
            return None, f"no {where} in the config, and {error.problem}" if ids is None else error.problem
        return layout, f"no {where} in the config: {why}" if ids is None else f"{where} {why}"


def read_draft(
    folder: str | Path,
    *,
    producer: str = "",
    norm_output: str = "",
    strict: bool = True,
    config_file: str | Path | None = None,
) -> DraftCheckpoint:
    """Read config.json and all tensors of a draft, and check names, shapes, numbers and the vocabulary maps.

    `folder` holds safetensors (one file or shards with an index), or pytorch_model.bin (likewise), or SpecForge's
    training_state.pt, which may also be named itself; nothing is unpickled. `producer` "" is told from the content,
    "sglang" reads a flat file as SGLang 0.5.23 serves it. `norm_output`: see `Eagle3Config.from_dict`. `config_file`
    is the config where it does not stand beside the tensors, as with a training_state.pt.

    Raises WiringError when a file is missing, damaged or holds pickled objects, when the config asks for a forward
    pass that is not implemented, and, if `strict`, when a finding is an error: a tensor that is missing, of a wrong
    shape or not finite, a draft id outside the target's vocabulary, vocabulary maps that disagree.
    """
    folder = Path(folder)
    home = folder.parent if folder.is_file() else folder
    where = home / _CONFIG if config_file is None else Path(config_file)
    if folder.exists() and not where.exists() and (folder.suffix == ".pt" or (folder / "training_state.pt").exists()):
        raise WiringError(
            "SpecForge's checkpoint comes without the draft's config",
            where=where,
            remedy="Copy the config of the training (its --draft-config) there",
        )
    config = read_json(where, "the draft's config")
    tensors, files = read_checkpoint(folder)
    return checkpoint_from(
        config,
        tensors,
        folder=home,
        producer=producer,
        norm_output=norm_output,
        strict=strict,
        files=files,
        where=where,
    )


def checkpoint_from(
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    folder: Path = Path("draft"),
    producer: str = "",
    norm_output: str = "",
    strict: bool = True,
    files: Mapping[str, Path] | None = None,
    where: object = "",
) -> DraftCheckpoint:
    """As `read_draft`, of a config and tensors in memory, by any producer's names; `files` says where each lies."""
    producer = producer or detect_producer(config, tensors)
    where = where or folder / _CONFIG
    shape = Eagle3Config.from_dict(config, where, producer, norm_output)
    names = {canonical(name): name for name in tensors}
    stored = Stored(
        tensors={canonical(name): tensor for name, tensor in tensors.items()},
        names=names,
        files={new: (files or {}).get(old, folder) for new, old in names.items()},
        folder=folder,
    )
    twice = sorted(set(tensors) - set(names.values()))
    findings = [
        Finding("held twice", "error", stored.where(canonical(name)), f"the file also holds it as {name}")
        for name in twice
    ]
    shape, decided = fitted(shape, stored, config, producer)
    shared = sharing(shape, config, producer, stored.tensors)
    findings += decided + check_tensors(shape, stored, shared, producer)
    maps, on_maps = check_vocabulary(shape, stored, producer)
    findings += on_maps + check_config(shape, config, producer, norm_output, str(where))
    checkpoint = DraftCheckpoint(folder, dict(config), dict(stored.tensors) | maps, shape, producer, tuple(findings))
    if strict and checkpoint.errors:
        raise _refusal(checkpoint.errors)
    return checkpoint


def _refusal(errors: tuple[Finding, ...]) -> WiringError:
    first, *others = errors[:_NAMED]
    text = "; ".join([first.evidence, *(f"{other.where}: {other.evidence}" for other in others)])
    if len(errors) > _NAMED:
        text += f"; and {len(errors) - _NAMED} more"
    return WiringError(f"the draft's tensors and config do not fit: {text}", where=first.where, remedy=first.remedy)

"""Read the EAGLE-3 draft checkpoint of any producer and check that its tensors fit its config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiring.checkpoints.config_fields import IDS
from wiring.checkpoints.draft_check import Stored, check_config, check_tensors, fit_to_tensors, read_vocabulary
from wiring.checkpoints.draft_config import DEFAULT_SLOTS, Eagle3Config, recorded_ids, sharing
from wiring.checkpoints.draft_producers import canonical, detect_producer
from wiring.checkpoints.file_findings import Finding
from wiring.checkpoints.tensor_files import read_checkpoint, read_json
from wiring.engines.engine_inputs import misplaced_layer_ids
from wiring.engines.trainers import trained_layout
from wiring.errors import WiringError
from wiring.layers import Layout

if TYPE_CHECKING:
    from torch import Tensor

_CONFIG = "config.json"
_NAMED = 3  # findings that an error lists


@dataclass(frozen=True)
class DraftCheckpoint:
    """A draft: its config as read, its tensors by canonical name, the shape that both describe, and the findings.

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
        """The findings of severity "error"."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    def layout_hint(self, num_layers: int) -> tuple[Layout | None, str]:
        """Return the layout that the draft records, by its producer's id convention, and an explanation.

        `num_layers` is the target's. Conventions and defaults are those of `wiring.engines.trainers`: of the recorded
        version for speculators, of the newest code for the others, which record none. The layout is None if the number
        of ids is not the number of slots, if there are no ids and other than 3 slots, and for "sglang", where the
        meaning of ids depends on the target's architecture.
        """
        ids, where = recorded_ids(self.config, self.producer)
        slots = self.shape.num_slots
        missing = f"no {where} in the config"
        if ids is None:
            if not self.config.get(IDS) and (misplaced := misplaced_layer_ids(self.config)):
                return None, f"ids {misplaced[1]} are under {misplaced[0]}, where no trainer writes them"
            if slots != DEFAULT_SLOTS:
                return None, f"{missing}, and no default for {slots} slots"
        elif len(ids) != slots:
            return None, f"{where} names {len(ids)} layers, fc takes {slots} states"
        if self.producer == "sglang":
            why = f"{where} {list(ids)}" if ids else missing
            return None, f"{why}: what SGLang reads from that depends on the target (wiring.engines.resolve)"
        version = self.config.get("speculators_version") if self.producer == "speculators" else None
        try:
            layout, why = trained_layout(self.producer, version, ids, num_layers)
        except WiringError as error:
            return None, f"{missing}, and {error.problem}" if ids is None else error.problem
        return layout, f"{missing}: {why}" if ids is None else f"{where} {why}"


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
    training_state.pt, and may also be this file; nothing is unpickled. `producer` "" is detected from the content,
    "sglang" reads a flat file as SGLang 0.5.23 serves it. `norm_output`: see `Eagle3Config.from_dict`. `config_file`
    is the config if it is not in the tensors' folder.

    Raises WiringError if a file is missing, damaged or holds pickled objects, if the config asks for a forward pass
    that is not implemented, and, with `strict`, if a finding is an error.
    """
    folder = Path(folder)
    home = folder.parent if folder.is_file() else folder
    where = home / _CONFIG if config_file is None else Path(config_file)
    if folder.exists() and not where.exists() and (folder.suffix == ".pt" or (folder / "training_state.pt").exists()):
        raise WiringError(
            "SpecForge's checkpoint comes without the draft's config",
            code="training-state-without-config",
            where=where,
            remedy="Copy the config of the training (its --draft-config) there",
        )
    config = read_json(where, "the draft's config")
    tensors, files = read_checkpoint(folder)
    options = {"producer": producer, "norm_output": norm_output, "strict": strict}
    return checkpoint_from(config, tensors, folder=home, files=files, where=where, **options)


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
    """Check a config and tensors in memory, by any producer's names, as `read_draft` does; `files` by tensor name."""
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
    shape, corrected = fit_to_tensors(shape, stored, config, producer)
    shared = sharing(shape, config, producer, stored.tensors)
    findings += corrected + check_tensors(shape, stored, shared, producer)
    maps, on_maps = read_vocabulary(shape, stored, producer)
    findings += [*on_maps, *check_config(shape, config, producer, norm_output, str(where))]
    checkpoint = DraftCheckpoint(folder, dict(config), dict(stored.tensors) | maps, shape, producer, tuple(findings))
    if strict and checkpoint.errors:
        first, *others = checkpoint.errors
        text = "; ".join([first.evidence, *(f"{other.where}: {other.evidence}" for other in others[: _NAMED - 1])])
        more = f"; and {len(others) + 1 - _NAMED} more" if len(others) >= _NAMED else ""
        raise WiringError(
            f"the draft's tensors and config do not fit: {text}{more}",
            code="draft-does-not-fit-config",
            where=first.where,
            remedy=first.remedy,
        )
    return checkpoint

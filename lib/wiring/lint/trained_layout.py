"""The layout that a draft was trained on: as said, as its cured copy records it, or as its config is taken to mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wiring.checkpoints.copy_record import MADE_FOR, CopyRecord
from wiring.checkpoints.draft_config import DEFAULT_SLOTS, IDS, recorded_ids
from wiring.engines.misplaced_layer_ids import misplaced_layer_ids
from wiring.engines.trainers import trained_layout
from wiring.errors import WiringError
from wiring.layers import Layout


@dataclass(frozen=True)
class Trained:
    """`layout` in boundaries, None where nothing tells it; `why` says where it comes from or what is missing.

    `certain` is False where the layout rests on an assumption, which `why` names; `guessed` is True where the draft
    records nothing and its producer's default is assumed; `said` is True where somebody named it in boundaries.
    """

    layout: Layout | None
    why: str
    certain: bool = True
    said: bool = False
    guessed: bool = False


def said(layout: Layout) -> Trained:
    """The layout that the caller knows."""
    return Trained(layout, "as said with --trained", said=True)


def copied(record: CopyRecord | None) -> Trained | None:
    """The layout that a cured copy was made for; None where there is no record, or one from before it was kept."""
    if record is None or record.layout is None:
        return None
    return Trained(record.layout, MADE_FOR, said=True)


def recorded(config: Mapping[str, Any], producer: str, num_layers: int | None, slots: int | None) -> Trained:
    """The layout that a draft's config records, by its producer's numbering.

    `num_layers` is the target's, None without one; `slots` how many states `fc` takes, None without the tensors.
    Ids that a flat config holds at its top level are taken too: they are what the trainer meant, whether or not an
    engine finds them there. A flat config does not say whose numbering its ids are in, so what it records is never
    certain. Its ids that are exactly the default boundaries (2, L//2, L-3) are taken for input ids, as SafeAILab and
    vLLM write them: as output ids nobody's default is spelt so. Ids that stand where nobody writes them, and ids that
    would be boundaries which do not exist, tell nothing. SafeAILab records no ids, since it always trains its default.
    """
    ids, where = recorded_ids(config, producer)
    if ids is None and config.get(IDS):
        ids, where = tuple(int(i) for i in config[IDS]), f"{IDS} at the top level"
    elif ids is None and (stray := misplaced_layer_ids(config)):
        return Trained(None, f"ids {stray[1]} stand under {stray[0]}, where no trainer writes what was trained")
    expected = slots or len(ids or ()) or DEFAULT_SLOTS
    if ids is not None and len(ids) != expected:
        return Trained(None, f"{where} names {len(ids)} layers, fc takes {slots} states")
    absent = "" if ids is not None else _absent(config, producer, where)
    if absent and expected != DEFAULT_SLOTS:
        return Trained(None, f"{absent}, and no default for {expected} slots")
    if absent and num_layers is None:
        return Trained(None, f"{absent}, and without a target no default layers")
    flat = producer != "speculators"
    default = None if num_layers is None else (2, num_layers // 2, num_layers - 3)
    if flat and ids is not None and ids == default:
        return Trained(ids, f"assumed: {where} {list(ids)}, the default layers as input ids", certain=False)
    version = None if flat else str(config.get("speculators_version") or "")
    try:
        layout, why = trained_layout(producer, version or None, ids, num_layers or 0)
    except WiringError as error:  # a version that is none, a target without room for the default
        return Trained(None, str(error))
    told = f"{absent}: {why}" if absent else f"{where} {why}"
    nowhere = [b for b in layout if b < 0 or (num_layers is not None and b > num_layers)]
    if nowhere:
        of = f"a target of {num_layers} layers" if num_layers is not None else "any target"
        return Trained(None, f"{told}, would be boundaries {layout}: {of} has no boundary {nowhere[0]}")
    guessed = bool(absent) and producer != "safeailab"
    return Trained(layout, f"assumed: {told}" if flat else told, certain=not flat, guessed=guessed)


def _absent(config: Mapping[str, Any], producer: str, where: str) -> str:
    source = config if producer == "speculators" else config.get("eagle_config") or {}
    if IDS not in source:
        return f"no {where} in the config"
    return f"{where} is {'null' if source[IDS] is None else 'an empty list'}"

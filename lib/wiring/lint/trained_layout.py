"""Determine the layout that a draft was trained on: as given, as its fixed copy records it, or from its config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wiring.checkpoints.copy_record import MADE_FOR, CopyRecord
from wiring.checkpoints.draft_config import DEFAULT_SLOTS, IDS, recorded_ids
from wiring.engines.engine_inputs import misplaced_layer_ids
from wiring.engines.trainers import trained_layout
from wiring.errors import WiringError
from wiring.layers import Layout, is_default_layout


@dataclass(frozen=True)
class TrainedLayout:
    """The trained layout in boundaries, None if unknown; `why` names its source or what is missing.

    `certain` is False if the layout rests on an assumption, named in `why`; `guessed` is True if the draft records
    nothing and its producer's default is assumed; `given` is True if it was given in boundaries.
    """

    layout: Layout | None
    why: str
    certain: bool = True
    given: bool = False
    guessed: bool = False


def given_layout(trained: Layout | None, record: CopyRecord | None) -> TrainedLayout | None:
    """Return the layout of `--trained`, or else the one that a fixed copy of the draft records; None without both."""
    if trained is not None:
        return TrainedLayout(trained, "given with --trained", given=True)
    if record is None or record.layout is None:
        return None
    return TrainedLayout(record.layout, MADE_FOR, given=True)


def recorded_layout(
    config: Mapping[str, Any], producer: str, num_layers: int | None, slots: int | None
) -> TrainedLayout:
    """Return the layout that a draft's config records, in its producer's id convention.

    `num_layers` is the target's, None without a target; `slots` the number of states that `fc` takes, None without
    tensors. Ids at the top level of a flat config count too: the trainer wrote them, even if no engine reads them.
    A flat config does not name its id convention, so its layout is never certain; ids equal to the default
    boundaries (2, L//2, L-3) are taken as input ids, as SafeAILab and vLLM write them. The layout is unknown for ids at
    a place where no trainer writes them and for ids that stand for boundaries that do not exist. SafeAILab records no
    ids, because it always trains on its default.
    """
    flat = producer != "speculators"
    ids, where = recorded_ids(config, producer)
    if ids is None and config.get(IDS):
        ids, where = tuple(int(i) for i in config[IDS]), f"{IDS} at the top level"
    elif ids is None and (stray := misplaced_layer_ids(config)):
        return TrainedLayout(None, f"ids {stray[1]} are under {stray[0]}, where no trainer writes the trained ids")
    expected = slots or len(ids or ()) or DEFAULT_SLOTS
    if ids is not None and len(ids) != expected:
        return TrainedLayout(None, f"{where} names {len(ids)} layers, fc takes {slots} states")
    absent = ""
    if ids is None:
        source = config.get("eagle_config") or {} if flat else config
        absent = f"no {where} in the config"
        if IDS in source:
            absent = f"{where} is {'null' if source[IDS] is None else 'an empty list'}"
        if expected != DEFAULT_SLOTS:
            return TrainedLayout(None, f"{absent}, and there is no default for {expected} slots")
        if num_layers is None:
            return TrainedLayout(None, f"{absent}, and the default layers need a target")
    if flat and ids is not None and is_default_layout(ids, num_layers or 0):
        return TrainedLayout(ids, f"assumed: {where} {list(ids)}, the default layers as input ids", certain=False)
    version = None if flat else str(config.get("speculators_version") or "")
    try:
        layout, why = trained_layout(producer, version or None, ids, num_layers or 0)
    except WiringError as error:  # not a version, or a target that is too shallow for the default
        return TrainedLayout(None, str(error))
    source = f"{absent}: {why}" if absent else f"{where} {why}"
    outside = [b for b in layout if b < 0 or (num_layers is not None and b > num_layers)]
    if outside:
        of = f"a target of {num_layers} layers" if num_layers is not None else "any target"
        return TrainedLayout(None, f"{source}, would be boundaries {layout}: {of} has no boundary {outside[0]}")
    guessed = bool(absent) and producer != "safeailab"
    return TrainedLayout(layout, f"assumed: {source}" if flat else source, certain=not flat, guessed=guessed)

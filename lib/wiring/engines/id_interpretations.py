"""One draft's layer ids, read by everyone who may: the same numbers name other layers to other programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wiring.engines.resolve import parse_engine, served_layout
from wiring.errors import WiringError
from wiring.layers import IdConvention, Layout, Phase, to_boundaries

TRAINERS = {
    "SpecForge, Model Optimizer, TorchSpec": IdConvention.OUTPUT_ID,
    "SafeAILab, speculators from 0.5 on": IdConvention.INPUT_ID,
}
# Releases between which the meaning of a draft's ids changed.
CONSUMERS = ("sglang==0.5.9", "sglang==0.5.12.post1", "sglang==0.5.23", "vllm==0.18.0", "vllm", "tensorrt-llm")


@dataclass(frozen=True)
class Reading:
    """What `reader` takes the ids for. A trainer has one reading, `layouts` has it for every phase; an engine's may
    differ by phase, None where it would fail. `rule` says how, in words."""

    reader: str
    layouts: Mapping[Phase, Layout | None]
    rule: str


def readings(
    target_config: Mapping[str, Any],
    draft_config: Mapping[str, Any],
    ids: Sequence[int] | None,
    consumers: Sequence[str] = CONSUMERS,
) -> tuple[Reading, ...]:
    """Every reading of a draft's layer `ids` (None: it records none; trainers then have no row) on this target.

    The configs are parsed config.json files. Raises WiringError for a consumer that is no engine of
    `wiring.engines.resolve`; an engine that does not serve the target has a row that says so.
    """
    rows = []
    if ids is not None:
        for trainer, dialect in TRAINERS.items():
            rows.append(Reading(trainer, dict.fromkeys(Phase, to_boundaries(ids, dialect)), f"{dialect}s"))
    for text in consumers:
        engine = parse_engine(text)
        try:
            served = served_layout(engine.name, engine.version, target_config, draft_config)
        except WiringError as error:
            rows.append(Reading(text, dict.fromkeys(Phase, None), error.problem))
            continue
        rows.append(
            Reading(text, {phase: served[phase] for phase in Phase}, "; ".join(dict.fromkeys(map(str, served.notes))))
        )
    return tuple(rows)

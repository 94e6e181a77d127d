"""Interpret one draft's layer ids by the rules of trainers and engines, which take the same ids for other layers."""

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
class IdInterpretation:
    """What `reader`, a trainer or an engine, takes the ids for.

    `layouts`: by phase, None in a phase that would fail; the same in all phases for a trainer. `rule` explains it.
    """

    reader: str
    layouts: Mapping[Phase, Layout | None]
    rule: str


def interpret_ids(
    target_config: Mapping[str, Any],
    draft_config: Mapping[str, Any],
    ids: Sequence[int] | None,
    consumers: Sequence[str] = CONSUMERS,
) -> tuple[IdInterpretation, ...]:
    """Return every interpretation of a draft's layer `ids` on this target (None: it records none; no trainer rows).

    The configs are parsed config.json files. Raises WiringError for a consumer that is no engine of
    `wiring.engines.resolve`; an engine that does not serve the target has a row with the reason.
    """
    rows = []
    if ids is not None:
        for trainer, convention in TRAINERS.items():
            layouts = dict.fromkeys(Phase, to_boundaries(ids, convention))
            rows.append(IdInterpretation(trainer, layouts, f"{convention}s"))
    for text in consumers:
        engine = parse_engine(text)
        try:
            served = served_layout(engine.name, engine.version, target_config, draft_config)
        except WiringError as error:
            rows.append(IdInterpretation(text, dict.fromkeys(Phase, None), error.problem))
            continue
        rule = "; ".join(dict.fromkeys(map(str, served.notes)))
        rows.append(IdInterpretation(text, {phase: served[phase] for phase in Phase}, rule))
    return tuple(rows)

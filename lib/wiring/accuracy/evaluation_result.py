"""Evaluate an opened draft with all controls, and write the result as JSON data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

import wiring
from wiring.accuracy.controls import AS_THEY_ARE, CORRUPTED
from wiring.accuracy.counting import CountingRule, counting_rule
from wiring.accuracy.evaluation import AccuracyReport, evaluate

if TYPE_CHECKING:
    from wiring.accuracy.draft_evaluation import DraftEvaluation
    from wiring.layers import Layout


@dataclass(frozen=True)
class EvaluationResult:
    """Accuracy under one layout with all controls; `skipped` files, `notes` on assumptions, `inputs` that were read."""

    rule: CountingRule
    layout: Layout
    why: str
    report: AccuracyReport
    controls: dict[str, AccuracyReport]
    skipped: tuple[tuple[str, str], ...]  # (file, reason)
    notes: tuple[str, ...]
    inputs: dict[str, str]  # folders, the draft's producer, the states' format, versions

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON data; shares in 0..1, null where unknown."""
        report = self.report
        return {
            **self.inputs,
            "preset": self.rule.name,
            "rule": self.rule.describe,
            "layout": list(self.layout),
            "layout_from": self.why,
            "sequences": report.sequences,
            "depths": [asdict(depth) for depth in report.depths],
            "accept_length": report.accept_length,
            "accept_length_with_bonus": report.accept_length_with_bonus,
            "accept_length_interval": [report.accept_length_low, report.accept_length_high],
            "positions": [asdict(bucket) for bucket in report.positions],
            "floors": {"unigram": report.unigram, "bigram": report.bigram},
            "controls": {
                name: {
                    "sequences": control.sequences,
                    "depths": [asdict(depth) for depth in control.depths],
                    "accept_length_with_bonus": control.accept_length_with_bonus,
                }
                for name, control in self.controls.items()
            },
            "skipped": [{"file": file, "reason": reason} for file, reason in self.skipped],
            "notes": list(self.notes),
        }


def measure(
    opened: DraftEvaluation,
    depths: int,
    *,
    preset: str = "specforge",
    layout: Layout | None = None,
    limit: int | None = None,
    batch: int = 8,
    trainer_batch: int = 1,
    control_sequences: int | None = 64,
    progress: Callable[[int], object] | None = None,
) -> EvaluationResult:
    """Evaluate an opened draft under `layout` (default: the opened choice) with every control that applies.

    `limit` is the number of sequences, `control_sequences` that for the controls and the out-of-vocabulary share. For
    the other arguments see `evaluate`.
    """
    layout = layout or opened.choice.layout
    samples: Iterable = opened.states if limit is None else islice(iter(opened.states), limit)
    few = len(opened.states) < 2 or limit == 1 or control_sequences == 1
    apply = [
        name
        for name in CORRUPTED
        if not (name == "permuted" and len(set(layout)) < 2) and not (name == "other_sequence" and few)
    ]
    reports = evaluate(
        opened.draft,
        samples,
        layout,
        depths,
        opened.head,
        controls=(AS_THEY_ARE, *apply),
        rule=preset,
        batch=batch,
        trainer_batch=trainer_batch,
        control_sequences=control_sequences,
        outside_sequences=control_sequences,
        progress=progress,
    )
    skipped = tuple((str(one.source), one.reason) for one in opened.states.skipped)
    return EvaluationResult(
        rule=counting_rule(preset),
        layout=layout,
        why=opened.choice.why,
        report=reports.pop(AS_THEY_ARE),
        controls=reports,
        skipped=skipped,
        notes=opened.notes,
        inputs={
            "draft": str(opened.checkpoint.folder),
            "states": str(opened.states.path),
            "target": str(opened.target.folder),
            "producer": opened.checkpoint.producer,
            "format": opened.states.format,
            "wiring_version": wiring.__version__,
            "torch_version": torch.__version__,
        },
    )

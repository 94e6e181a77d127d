"""What each notebook leaves for the next: typed JSON, one model per notebook, and the summary of a case."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from wiring.accuracy.accuracy_report import AccuracyReport
from wiring.bench.arm_results import ArmResult
from wiring.bench.cost_model import SpeedupPrediction
from wiring.bench.measurement import Machine
from wiring.bench.speedup_breakdown import BreakdownStep
from wiring.capture.matching import SlotMatch
from wiring.capture.served_accuracy import PairedDepth
from wiring.checkpoints.file_findings import Finding
from wiring.diagnosis.verdict import Verdict
from wiring.server.arguments import ArgumentRow
from wiring.workbook.check import Claim


class Artefact(BaseModel):
    """A notebook's result. Unknown fields are refused, so an artefact of another release cannot be misread."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Concluding(Artefact):
    """An artefact that ends in claims; `source` says whether the server was measured now or in a recorded run."""

    source: Literal["live", "recorded"]
    machine: Machine
    conclusions: tuple[Claim, ...]


class Throughput(Concluding):
    """Notebook 01: plain decoding beside EAGLE-3 as served."""

    rate_rule: str
    accept_rule: str
    plain: ArmResult
    as_served: ArmResult
    same_outputs: tuple[bool, ...]
    bigram_shares: tuple[float, ...]
    arguments: tuple[ArgumentRow, ...]


class Accuracy(Concluding):
    """Notebook 02: the draft alone, on its saved training states."""

    accuracy_rule: str
    documents: int
    trained: AccuracyReport
    served: AccuracyReport
    controls: tuple[AccuracyReport, ...]


class PhaseLayout(Artefact):
    """A served layout by phase; None for a phase that was not seen or could not be decided."""

    prefill: tuple[int, ...] | None
    verify: tuple[int, ...] | None
    draft_extend: tuple[int, ...] | None = None


class LayoutSearch(Artefact):
    """The layout that the draft's weights were trained on (None: no layout fits), and how much worse the next one is.

    `difference` is in nats of the draft's first step, with its 95 % interval; `alike`: layouts that the text does not
    tell apart from the first.
    """

    layout: tuple[int, ...] | None
    fits: bool
    alike: tuple[tuple[int, ...], ...]
    runner_up: tuple[int, ...]
    difference: float
    low: float
    high: float


class LayoutDiff(Concluding):
    """Notebook 03: the trained layout against the served one, by rule, by capture and by the draft's own weights.

    `slots` and `kinds` (fault numbers) are by phase; `lint_findings` are those of `wiring lint` on draft and target;
    `conclusion` is the finding in a sentence.
    """

    trained: tuple[int, ...]
    by_rule: PhaseLayout
    rule_notes: tuple[str, ...]
    captured: PhaseLayout
    slots: dict[str, tuple[SlotMatch, ...]]
    kinds: dict[str, tuple[int, ...]]
    search: LayoutSearch
    serving: tuple[PairedDepth, ...]
    serving_rule: str
    conclusion: str
    lint_findings: tuple[Finding, ...] = ()


class CureRow(Artefact):
    """One form of the cure: what it writes, and what the capture saw under it, slot by slot in each phase."""

    form: str
    ids: tuple[int, ...]
    environment: dict[str, str]
    changes: tuple[str, ...]
    reason: str
    diff: str
    captured: PhaseLayout
    slots: dict[str, tuple[SlotMatch, ...]] = {}
    embedding_rows: int
    embedding_rows_bit_equal: int
    outputs_as_plain: bool


class Patch(Concluding):
    """Notebook 04: the cures, proved by capture and undone; `applied_to`: which SGLang the source form edited."""

    chosen: str
    cures: tuple[CureRow, ...]
    applied_to: str = "scratch"
    source_untouched: bool
    undone: bool


class Rebenchmark(Concluding):
    """Notebook 05: plain, as served and cured in one run, the prediction, the speed-up breakdown, the two verdicts."""

    form: str
    rate_rule: str
    accept_rule: str
    plain: ArmResult
    as_served: ArmResult
    cured: ArmResult
    same_outputs: tuple[bool, ...]
    round_costs: dict[int, float]  # draft steps -> plain decode steps that a round costs
    prediction: SpeedupPrediction
    replayed_acceptance_by_position: tuple[float, ...]
    ladder: tuple[BreakdownStep, ...] = ()
    verdict: Verdict | None = None  # of the draft as served
    verdict_cured: Verdict | None = None


ARTEFACTS: dict[str, type[Concluding]] = {
    "01_throughput": Throughput,
    "02_accuracy": Accuracy,
    "03_layout": LayoutDiff,
    "04_patch": Patch,
    "05_rebenchmark": Rebenchmark,
}

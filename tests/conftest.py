"""A complete set of artefacts with plain numbers, for the store and the summary."""

import json
import shutil
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from wiring.accuracy.accuracy_report import AccuracyReport, DepthAccuracy
from wiring.bench.arm_results import ArmResult
from wiring.bench.cost_model import SpeedupPrediction
from wiring.bench.measurement import Machine
from wiring.capture.matching import SlotMatch
from wiring.capture.served_accuracy import PairedDepth
from wiring.cli import app as program
from wiring.server.arguments import ArgumentRow
from wiring.workbook import artefacts as a
from wiring.workbook import check

TESTS = Path(__file__).parent
# Helper modules of one folder are imported by tests of others.
HELPERS = (
    "unit/accuracy unit/bench unit/capture unit/checkpoints unit/diagnosis unit/diagnosis/injection unit/figures"
    " unit/layout_search unit/lint unit/logs unit/model unit/notebooks unit/patch unit/server server"
    " external/browser external/benchmarks external/peers external/releases"
).split()
sys.path[:0] = [str(TESTS / folder) for folder in HELPERS]

# Tests run in the background of a script ignore Ctrl-C, and the programs that they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadlines: a busy machine can stop a test for longer. The same examples in every run of the same modules.
settings.load_profile("ci")

MACHINE = Machine(date="2026-01-02", processor="p", cores=2, python="3.11", versions={"sglang": "0.5.23"})


def arm(name, rate, speedup, accept=None):
    return ArmResult(
        arm=name,
        requests=8,
        tok_per_s=rate,
        tok_per_s_quartiles=(rate, rate),
        speedup=speedup,
        speedup_quartiles=(speedup, speedup),
        prefill_s=0.1,
        accept_length=accept,
        acceptance_by_position=(0.5,) if accept else (),
    )


def report(layout, accuracy, depths=1):
    """An accuracy report of one control with the same accuracy at every depth."""
    return AccuracyReport(
        layout=layout,
        control="none",
        rule="specforge",
        sequences=2,
        depths=tuple(
            DepthAccuracy(
                depth=k,
                correct=1,
                total=2,
                accuracy=accuracy,
                low=0.4,
                high=0.7,
                floor=0.1,
                out_of_vocabulary=0,
                out_of_vocabulary_of=2,
            )
            for k in range(depths)
        ),
        positions=(),
        accept_length=accuracy,
        accept_length_low=0.1,
        accept_length_high=0.9,
        unigram=0.1,
        bigram=None,
    )


@pytest.fixture(scope="session")
def trained_draft(tmp_path_factory) -> Path:
    """A copy of the shipped draft that asks for its trained layout; the shipped one has few drafts accepted."""
    folder = tmp_path_factory.mktemp("trained") / "draft"
    shutil.copytree(Path(__file__).parents[1] / "data" / "tiny" / "draft", folder)
    config = json.loads((folder / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [0, 3, 31]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def accuracy_report():
    """The factory `report`."""
    return report


def common(claim):
    return dict(source="live", machine=MACHINE, conclusions=(check.equals(claim, expected=1, actual=1),))


@pytest.fixture
def five():
    served = a.PhaseLayout(prefill=(3, 31, 59), verify=(3, 31, 59))
    trained = a.PhaseLayout(prefill=(0, 3, 31), verify=(0, 3, 31))
    arguments = (
        ArgumentRow(name="steps", asked=5, resolved=5, overridden=False),
        ArgumentRow(name="draft_tokens", asked=8, resolved=6, overridden=True, reason="top-k 1"),
    )
    arms = dict(plain=arm("plain", 16, 1.0), as_served=arm("as served", 14, 0.9, 1.06))
    cure = dict(diff="", embedding_rows=5, embedding_rows_bit_equal=5, outputs_as_plain=True)
    cure |= dict(environment={}, changes=(), reason="")
    found = dict(relative_error=0.0, runner_up=5, runner_up_error=0.4, cosine=1.0, null_error=1.4, verdict="equals")
    slots = tuple(
        SlotMatch(slot=i, boundary=b, transform=t, **found)
        for i, (b, t) in enumerate(((0, "raw"), (3, "raw"), (32, "normed")))
    )
    return {
        "01_throughput": a.Throughput(
            **common("one"),
            **arms,
            rate_rule="r",
            accept_rule="a",
            same_outputs=(True, True),
            bigram_shares=(0.6,),
            arguments=arguments,
        ),
        "02_accuracy": a.Accuracy(
            **common("two"),
            accuracy_rule="r",
            documents=64,
            trained=report((0, 3, 31), 0.77),
            served=report((3, 31, 59), 0.05),
            controls=(),
        ),
        "03_layout": a.LayoutDiff(
            **common("three"),
            trained=(0, 3, 31),
            by_rule=served,
            rule_notes=(),
            captured=served,
            slots={},
            kinds={},
            search=a.LayoutSearch(
                layout=(0, 3, 31), fits=True, alike=(), runner_up=(0, 3, 32), difference=0.2, low=0.1, high=0.3
            ),
            serving=(
                PairedDepth(depth=0, rows=50, trained=0.8, served=0.1, difference_low=-0.8, difference_high=-0.6),
            ),
            serving_rule="r",
            conclusion="Trained on one layout, served another.",
        ),
        "04_patch": a.Patch(
            **common("four"),
            chosen="config",
            source_untouched=True,
            undone=True,
            cures=(
                a.CureRow(form="config", ids=(0, 3, 31), captured=trained, slots={"verify": slots}, **cure),
                a.CureRow(form="plugin", ids=(-1, 2, 30), captured=served, **cure),
            ),
        ),
        "05_rebenchmark": a.Rebenchmark(
            **common("five"),
            **arms,
            form="config",
            rate_rule="r",
            accept_rule="a",
            cured=arm("cured", 36, 2.2, 2.8),
            same_outputs=(True, True),
            round_costs={3: 1.2, 7: 1.3},
            replayed_acceptance_by_position=(0.7,),
            prediction=SpeedupPrediction(
                accept_length=2.8, round_s=0.075, step_s=0.06, speedup=2.1, break_even=1.25, limit=4.8
            ),
        ),
    }


@pytest.fixture
def wiring_call(monkeypatch, capsys):
    """Run `wiring ...` in this process: exit status, stdout, stderr."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["wiring", *map(str, words)])
        try:
            program.main()
            status = 0
        except SystemExit as ended:
            status = ended.code or 0
        out = capsys.readouterr()
        return status, out.out, out.err

    return run

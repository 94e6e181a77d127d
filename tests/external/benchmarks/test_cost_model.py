"""The cost model on the real server: eleven settings beside plain decoding, seven of them predicted from four.

`python tests/benchmarks/test_cost_model.py` records such a run for the tests that start no server.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from sweep import FIT, HELD_OUT, check_sweep, measure_sweep, replay_trees

from wiring.bench.arm_results import same_outputs
from wiring.bench.round_cost import chain
from wiring.checkpoints.atomic import write_text
from wiring.checkpoints.target_files import read_target_config
from wiring.checkpoints.tensor_files import read_json
from wiring.engines.sglang import SUPPORTED
from wiring.patch.plan import plan_cures
from wiring.workbook.case import open_case
from wiring.workbook.progress import say

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(2400)]
PROMPTS = 6
RECORDED = Path(__file__).parents[2] / "unit" / "bench" / "recorded" / "sweep.json"


def sweep(folder):
    """Measure all settings on the cured tiny pair, and replay the trees of all of them without a server."""
    case = open_case(profile="cpu-tiny", run=str(folder), measure="live")
    # Forwards and backwards over the arms for each prompt: a drift of the machine cancels.
    twice = case.profile.benchmark.model_copy(update={"repeats": 2})
    case = replace(case, profile=case.profile.model_copy(update={"benchmark": twice}))
    config = read_json(case.profile.draft / "config.json", "the draft's config")
    cure = plan_cures(SUPPORTED, read_target_config(case.profile.target).raw, config, case.profile.layout).cures[0]
    runs = measure_sweep(case, cure, prompts=PROMPTS, progress=say)
    return runs, replay_trees(case, runs[0], (*FIT, *HELD_OUT), progress=say)


def write_sweep(path, runs, trees):
    """Keep a sweep, for the tests that start no server and for a second look."""
    rows = [{"setting": [s.steps, s.topk, s.draft_tokens], "rounds": rounds} for s, rounds in trees.items()]
    write_text(path, json.dumps({"runs": [r.model_dump(mode="json") for r in runs], "trees": rows}) + "\n")


def table(check):
    """What the model says, line by line."""
    lines = [", ".join(f"{c.name} {c.value:.4f} +- {c.error or float('nan'):.4f}" for c in check.model.coefficients)]
    model = check.model
    lines.append(f"residual {model.residual:.3f}, bend {model.bend}, baseline against itself {check.noise}")
    for row in check.rows:
        shape = f"{row.setting.steps} {row.setting.topk} {row.setting.draft_tokens:2d}"
        lines.append(
            f"{shape}: accept length {row.accept_length:.2f} "
            f"(measured {row.accept_length_measured:.2f}), price {row.price:.3f} ({row.price_measured:.3f}), speed-up "
            f"{row.speedup:.2f} ({row.speedup_measured:.2f}), miss {row.miss:+.1%}, {row.from_}"
        )
    return "\n".join(lines)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    runs, trees = sweep(folder)
    write_sweep(folder / "sweep.json", runs, trees)
    print(folder / "sweep.json")
    return runs, trees


def test_five_of_seven_settings_are_predicted_within_a_tenth(run):
    runs, trees = run
    check = check_sweep(runs, trees=trees)
    print(table(check))
    assert len(check.rows) == 7 and check.within(0.1) >= 5, table(check)


def test_a_price_that_does_not_depend_on_the_setting_predicts_fewer(run):
    # The control: with the narrowest chain's price for all, wide rounds are promised too much.
    runs, trees = run
    check = check_sweep(runs, trees=trees)
    cheap = next(p.price for p in check.model.settings if p.setting == chain(1))
    flat = [row.speedup * row.price / cheap / row.speedup_measured - 1 for row in check.rows]
    assert sum(abs(miss) <= 0.1 for miss in flat) < check.within(0.1), flat


def test_the_replayed_accept_length_of_a_tree_is_the_servers(run):
    runs, trees = run
    for row in check_sweep(runs, trees=trees).rows:
        if row.setting in trees:
            assert row.accept_length == pytest.approx(row.accept_length_measured, rel=0.02), row.setting


def test_every_setting_serves_the_plain_text(run):
    plain = run[0][0].arm("plain")
    for measured in run[0]:
        for arm in {t.arm for t in measured.trials}:
            assert all(same_outputs(measured.arm(arm), plain)), arm


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        runs, trees = sweep(Path(folder))
    write_sweep(RECORDED, runs, trees)
    print(table(check_sweep(runs, trees=trees)))

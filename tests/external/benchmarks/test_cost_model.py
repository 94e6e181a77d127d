"""The cost model on the real server: seven chain lengths and plain decoding, four of them predicted from three.

`python tests/external/benchmarks/test_cost_model.py` records such a run for the tests that start no server.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from sweep import check_sweep, measure_sweep

from wiring.bench.arm_results import same_outputs
from wiring.checkpoints.atomic import write_text
from wiring.checkpoints.target_files import read_target_config
from wiring.checkpoints.tensor_files import read_json
from wiring.engines.sglang import SUPPORTED
from wiring.patch.plan import plan_fixes
from wiring.workbook.case import open_case
from wiring.workbook.progress import say

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(2400)]
RECORDED = Path(__file__).parents[2] / "unit" / "bench" / "recorded" / "sweep.json"


def sweep(folder):
    """Measure all chain lengths on the fixed tiny pair and write the runs to `folder`/sweep.json."""
    case = open_case(profile="cpu-tiny", run=str(folder), measure="live")
    # Forwards and backwards over the arms for each prompt, so a drift of the machine cancels.
    twice = case.profile.benchmark.model_copy(update={"repeats": 2})
    case = replace(case, profile=case.profile.model_copy(update={"benchmark": twice}))
    config = read_json(case.profile.draft / "config.json", "the draft's config")
    fix = plan_fixes(SUPPORTED, read_target_config(case.profile.target).raw, config, case.profile.layout).fixes[0]
    runs = measure_sweep(case, fix, prompts=6, progress=say)
    write_text(folder / "sweep.json", json.dumps({"runs": [r.model_dump(mode="json") for r in runs]}) + "\n")
    return runs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return sweep(tmp_path_factory.mktemp("sweep"))


def test_three_of_four_chains_are_predicted_within_a_tenth(run):
    model, rows = check_sweep(run)
    print(model.coefficients, *rows, sep="\n")
    close = sum(abs(row.miss) <= 0.1 for row in rows)
    assert len(rows) == 4 and close >= 3
    # The control: with the cost of the shortest chain for all, longer chains are predicted too fast.
    lowest = model.settings[0].cost
    flat = [row.speedup * row.cost / lowest / row.speedup_measured - 1 for row in rows]
    assert sum(abs(miss) <= 0.1 for miss in flat) < close, flat


def test_every_chain_serves_the_plain_text(run):
    plain = run[0].arm("plain")
    for measured in run:
        for arm in {t.arm for t in measured.trials}:
            assert all(same_outputs(measured.arm(arm), plain)), arm


if __name__ == "__main__":
    sweep(RECORDED.parent)

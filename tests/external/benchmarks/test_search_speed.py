"""How long the search takes: every layout of the tiny pair on two cores, and a draft of real width on a CPU.

The exhaustive search is compared with the plain forward of each layout on all documents: 200 random layouts are timed
in the same run, and extrapolated. At real width draft and states are random and
the layout is planted (see tests/unit/layout_search/planted_search.py); a child process reports its peak memory.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

OFFLINE = Path(__file__).parents[2] / "unit" / "layout_search"
sys.path.insert(0, str(OFFLINE))

pytestmark = pytest.mark.benchmark
THREADS = 2
TRAINED = (0, 3, 31)
MOST_SECONDS, LEAST_TIMES, COORDINATE_SECONDS, GIB = 120, 40, 5, 24


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)


@torch.no_grad()
def one_by_one(draft, data, layout, batch=8):
    """Mean cross-entropy of one layout by the plain forward on all documents."""
    total = 0.0
    for first in range(0, len(data.tokens), batch):
        part = slice(first, first + batch)
        states = data.states[list(layout), part].permute(1, 2, 0, 3)
        logits = draft.logits(next(draft.hidden_steps(data.tokens[part], states, 1)))
        total += float(
            F.cross_entropy(logits.flatten(0, 1) / 4, data.labels[part].flatten(), ignore_index=-1, reduction="sum")
        )
    return total / int(data.counted.sum())


@pytest.mark.timeout(1800)
def test_every_layout_of_the_tiny_pair(two_threads):
    import search_pair

    from wiring.layout_search import search

    draft, data = search_pair.load(search_pair.PAIR / "draft"), search_pair.data()
    drawn = torch.randint(0, 62, (200, 3), generator=torch.Generator().manual_seed(0)).tolist()
    one_by_one(draft, data, drawn[0])
    seconds = []
    for layout in drawn:
        began = time.perf_counter()
        one_by_one(draft, data, layout)
        seconds.append(time.perf_counter() - began)
    load = os.getloadavg()[0]
    by_slots = search(draft, data)
    by_all = search(draft, data, exhaustive=True)
    plain = statistics.mean(seconds) * 62**3
    print(f"\n{62**3:,} layouts, {by_all.rows} rows of {by_all.documents} documents, load {load:.1f}")
    times = plain / by_all.seconds
    print(f"  exhaustive {by_all.seconds:.1f} s; one by one {plain:.0f} s, by a random 200 of them: {times:.0f} times")
    print(f"  coordinate search {by_slots.seconds:.2f} s, without the target's forward")
    for level in by_all.levels:
        print(f"  level: {level}")
    for row in by_all.ranking[:5]:
        print(f"  {row}")
    assert by_all.compared == 238_328
    assert by_all.ranking[0].layout == by_slots.ranking[0].layout == TRAINED
    assert by_all.fits and by_slots.fits
    assert by_all.ranking[0].cross_entropy == pytest.approx(one_by_one(draft, data, TRAINED), rel=1e-5)
    assert by_all.seconds <= MOST_SECONDS and times >= LEAST_TIMES
    assert by_slots.seconds < COORDINATE_SECONDS


WIDE = """
import json, resource, sys, time
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(int(sys.argv[2]))
layout = tuple(json.loads(sys.argv[3]))
from planted_search import planted_draft, planted_material, small_config
from wiring.layout_search import search
config = small_config(num_slots=len(layout), hidden_size=7168, target_hidden_size=7168, intermediate_size=18432,
                      num_heads=64, num_kv_heads=8, head_dim=128, vocab_size=32000, draft_vocab_size=32000)
began = time.monotonic()
draft = planted_draft(config)
data = planted_material(draft, layout, 61, 16, 24)
made = time.monotonic() - began
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
result = search(draft, data)
print(json.dumps({"layout": result.layout, "fits": result.fits, "seconds": result.seconds, "made": made,
    "rows": result.rows, "compared": result.compared, "before": before,
    "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "runner_up": result.ranking[1].difference,
    "low": result.ranking[1].low}))
"""


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("layout", [(0, 3, 31), (2, 20, 40, 61)], ids=["k=3", "k=4"])
def test_a_draft_of_real_width(layout):
    """H = 7168, 61 layers, MLP 18432, 32,000 draft ids, float32 on the CPU; the layout is planted."""
    command = [sys.executable, "-c", WIDE, str(OFFLINE), str(THREADS), json.dumps(layout)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    gib = found["peak"] / 2**20
    print(
        f"\nH = 7168, k = {len(layout)}: {found['seconds']:.0f} s, peak {gib:.1f} GiB (draft and states made in "
        f"{found['made']:.0f} s, {found['before'] / 2**20:.1f} GiB), {found['rows']} rows, {found['compared']} "
        f"layouts at the end, runner-up {found['runner_up']:.4f} nats behind (from {found['low']:.4f}), "
        f"load {os.getloadavg()[0]:.1f}"
    )
    assert tuple(found["layout"]) == layout and found["fits"]
    assert gib < GIB

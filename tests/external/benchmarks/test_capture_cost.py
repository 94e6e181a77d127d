"""What the capture costs a CPU server of the shipped pair: nothing when off, at most a tenth of its throughput when on.

Servers of three kinds are started in turn and back again: "bare", in which SGLang is not even told of the capture's
entry point; "off", as every server in this environment is; "on", which captures requests of one name and no others. On
the last, requests that are captured and requests that are not take turns, so that both meet the same machine. The
speed of a request is its new tokens by the seconds until its answer is there. What two starts of one kind differ by
is the noise beside which the difference between "bare" and "off" is judged.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest

from wiring.capture.folder_summary import summarize
from wiring.capture.records import capture_environment
from wiring.engines.sglang import Speculation
from wiring.server.launch import start
from wiring.server.server_spec import ServerSpec

pytestmark = [pytest.mark.benchmark(group="capture"), pytest.mark.timeout(1800)]

TINY = Path(__file__).parents[3] / "data" / "tiny"
ORDER = ("bare", "off", "on", "on", "off", "bare")
REQUESTS, NEW_TOKENS, WARM_UP = 8, 32, 2
LEAST_SHARE = 0.9
LEAST_NOISE = 0.03  # two starts that happen to agree better than this say nothing of a third


def speeds(spec: ServerSpec, log: Path, names: tuple[str, ...]) -> dict[str, list[float]]:
    """New tokens per second of each request by name, the names taking turns; the first requests are not counted."""
    prompts = [entry["input_ids"] for entry in json.loads((TINY / "prompts.json").read_text())[:REQUESTS]]
    found = defaultdict(list)
    with start(spec, log, timeout_s=500) as server:
        for i, prompt in enumerate([*prompts[:WARM_UP], *prompts]):
            for name in names if i % 2 else reversed(names):  # neither is always the second
                server.client.flush_cache()
                reply = server.client.generate(prompt, NEW_TOKENS, rid=f"{name}-{i}")
                if i >= WARM_UP:
                    found[name].append(len(reply.output_ids) / reply.latency_s)
    return found


@pytest.fixture(scope="module")
def measured(trained_draft, tmp_path_factory) -> tuple[dict[str, list[list[float]]], list[Path]]:
    """Speeds by name, one list for each start; and the capture folders.

    Under its trained layout rounds accept drafts and have several rows to record.
    """
    root, folders = tmp_path_factory.mktemp("servers"), []
    found: dict[str, list[list[float]]] = defaultdict(list)
    for number, kind in enumerate(ORDER):
        env = {"SGLANG_PLUGINS": "wiring_cpu"} if kind == "bare" else {}
        if kind == "on":
            folders.append(root / f"capture-{number}")
            env = capture_environment(folders[-1], rows=10**6, prefix="captured-")
        spec = ServerSpec(TINY / "target", trained_draft, Speculation(5, 1, 6), env=env)
        names = ("captured", "passed by") if kind == "on" else (kind,)
        for name, values in speeds(spec, root / f"{number}.log", names).items():
            found[name].append(values)
    for name, starts in found.items():
        print(f"{name}: " + ", ".join(f"{median(values):.2f}" for values in starts) + " tokens/s (median by start)")
    return found, folders


def typical(starts: list[list[float]]) -> float:
    return median(value for values in starts for value in values)


def test_capture_leaves_nine_tenths_of_the_throughput(measured):
    found, folders = measured
    pairs = zip(found["captured"], found["passed by"], strict=True)
    within = median(a / b for on, off in pairs for a, b in zip(on, off, strict=True))
    across = typical(found["captured"]) / typical(found["off"])
    print(f"captured / passed by, the same server: {within:.3f}; captured / off, servers in turn: {across:.3f}")
    for folder in folders:  # the capture was at work
        summary = summarize(folder)
        print(summary)
        assert summary.missing == () and not summary.truncated
    assert within >= LEAST_SHARE
    assert across >= LEAST_SHARE


def test_capture_that_is_off_costs_nothing(measured):
    found, _ = measured
    differences = [abs(median(found[kind][0]) / median(found[kind][1]) - 1) for kind in ("bare", "off", "passed by")]
    noise = max(LEAST_NOISE, *differences)
    share = typical(found["off"]) / typical(found["bare"])
    print(f"off / bare: {share:.3f}; two starts of one kind differ by {', '.join(f'{d:.1%}' for d in differences)}")
    assert abs(share - 1) <= noise

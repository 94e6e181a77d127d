"""What both peer programs share: the folders that a test wrote, the numbers that go back, and timing on demand.

These programs run in the peers' own environment and import nothing of this project.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def read_case(case: Path) -> tuple[dict, dict[str, torch.Tensor]]:
    """The settings and the draft's tensors of one case."""
    return json.loads((case / "settings.json").read_text()), load_file(case / "weights.safetensors")


def write_result(case: Path, counts: dict, logits: dict[str, torch.Tensor]) -> None:
    """`counts` to counts.json, `logits` by "sequence.step" [rows, Vd] to logits.safetensors."""
    save_file({name: tensor.float().contiguous() for name, tensor in logits.items()}, case / "logits.safetensors")
    (case / "counts.json").write_text(json.dumps(counts))


def run(evaluate, prepare_timing) -> None:
    """Evaluate every case folder below the argument; with --time answer each line of stdin with a timed pass.

    `evaluate(case)` returns (counts, logits). `prepare_timing(case)` returns a function that makes one whole pass over
    the case's sequences; it is called once before the first answer, so that nothing is timed cold.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", type=Path)
    parser.add_argument("--time", action="store_true")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    if options.time:
        answer, sys.stdout = sys.stdout, sys.stderr  # stdout carries the answers alone
        once = prepare_timing(options.cases)
        once()
        print("ready", file=answer, flush=True)
        for _ in sys.stdin:
            began = time.perf_counter()
            once()
            print(time.perf_counter() - began, file=answer, flush=True)
        return
    for settings in sorted(options.cases.glob("*/settings.json")):
        try:
            write_result(settings.parent, *evaluate(settings.parent))
        except Exception:  # one peer's refusal of one draft must not hide the other drafts' results
            (settings.parent / "failed.txt").write_text(traceback.format_exc())

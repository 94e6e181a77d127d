"""Command line: make the tiny pair again from a seed."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from tiny.config import STAGES
from wiring.errors import WiringError

EXAMPLES = """examples:
  python -m tiny --out my_pair                  everything, about half an hour on two free cores
  python -m tiny --out my_pair --only draft     the draft again, from the target and states that are there
  python -m tiny --out trial --smoke            every file in a minute, trained for a few steps only
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tiny",
        description="Make the tiny pair: a 61-layer target, its EAGLE-3 draft, saved training states and prompts.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the pair; new, empty, or of an earlier run")
    parser.add_argument("--seed", type=int, default=0, help="decides documents and first weights (default 0)")
    parser.add_argument("--only", choices=STAGES, action="append", help="make this part only; may be given again")
    parser.add_argument(
        "--draft-seeds",
        type=int,
        default=1,
        metavar="N",
        help="train N drafts, from the seed and those after it, and measure all; the first is kept (default 1)",
    )
    parser.add_argument("--smoke", action="store_true", help="train for a few steps only, to try the machinery")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0, 1 when a bound is missed, 2 for an error that is explained."""
    chosen = _parser().parse_args(arguments)
    # Threads that spin while they wait for each other slow a busy machine down twentyfold. Read when torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from tiny.make import SMOKE, Plan, make

    stages = [stage for stage in STAGES if not chosen.only or stage in chosen.only]
    try:
        plan = replace(SMOKE if chosen.smoke else Plan(), draft_seeds=max(1, chosen.draft_seeds))
        manifest = make(chosen.out, chosen.seed, stages, plan)
    except WiringError as error:
        print(error, file=sys.stderr)
        return 2
    for row in manifest.get("drafts", ()):
        shares = ", ".join(f"{name} {row[name][0]:.3f}" for name in ("trained", "served", "zeroed"))
        print(f"draft of seed {row['seed']}: {shares}; accept length {row['accept_length_trained']:.2f} as trained")
    missed = manifest.get("bounds_missed", [])
    for problem in missed:
        print(f"bound missed: {problem}")
    return 1 if missed and not chosen.smoke else 0


if __name__ == "__main__":
    sys.exit(main())

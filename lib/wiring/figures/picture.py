"""The picture of a verdict for places that show no interactive figure, such as README.md: throughput and layouts.

Use: python -m wiring.figures.picture RUN_FOLDER PICTURE.png
"""

from __future__ import annotations

import sys
from pathlib import Path

from wiring.checkpoints.atomic import replacing
from wiring.figures.plot_template import ARM_COLOURS, GREEN, ORANGE
from wiring.layers import describe
from wiring.workbook.artefacts import LayoutDiff, Patch, Rebenchmark
from wiring.workbook.case import validate_artefact


def draw(layout: LayoutDiff, patch: Patch, rebenchmark: Rebenchmark, path: Path) -> None:
    """Draw bars of the three arms (median, quartiles, predicted mark) beside the boundary in each slot."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    fig = Figure(figsize=(9, 3.4), layout="constrained")
    bars, slots = fig.subplots(1, 2, width_ratios=(1, 1.1))
    arms = (rebenchmark.plain, rebenchmark.as_served, rebenchmark.cured)
    for x, arm in enumerate(arms):
        low, high = arm.tok_per_s_quartiles
        spread = [[arm.tok_per_s - low], [high - arm.tok_per_s]]
        bars.bar(x, arm.tok_per_s, width=0.6, color=ARM_COLOURS[arm.arm], yerr=spread, capsize=3)
        bars.text(x, arm.tok_per_s / 2, f"{arm.speedup:.2f}x", ha="center", color="black", weight="bold")
    predicted = rebenchmark.prediction.speedup * rebenchmark.plain.tok_per_s
    bars.hlines(predicted, 1.65, 2.35, colors="black", label="predicted")
    bars.set_xticks(range(3), [arm.arm for arm in arms])
    bars.set_ylabel("output tokens per second")
    bars.set_title("Same draft, same server", fontsize=11)
    bars.legend(frameon=False, loc="upper left")
    bars.spines[["top", "right"]].set_visible(False)
    cured = next(cure for cure in patch.cures if cure.form == patch.chosen)
    rows = {"trained": layout.trained, "as served": layout.captured.verify, "cured": cured.captured.verify}
    right = [[float(b == t) for b, t in zip(row, layout.trained, strict=True)] for row in rows.values()]
    slots.imshow(right, vmin=0, vmax=1, cmap=ListedColormap([ORANGE, GREEN]), aspect="auto", alpha=0.7)
    for y, row in enumerate(rows.values()):
        for x, boundary in enumerate(row):
            slots.text(x, y, describe(boundary), ha="center", va="center", fontsize=9)
    slots.set_xticks(range(len(layout.trained)), [f"slot {i}" for i in range(len(layout.trained))])
    slots.set_yticks(range(len(rows)), list(rows))
    slots.tick_params(length=0)
    slots.set_title("Slots of the draft's fc, captured in verify", fontsize=11)
    with replacing(path) as temporary:
        fig.savefig(temporary, format="png", dpi=110, metadata={"Software": None})


def main() -> None:
    """Draw the picture of a run folder."""
    folder, path = Path(sys.argv[1]), Path(sys.argv[2])
    names = ("03_layout", "04_patch", "05_rebenchmark")
    draw(*(validate_artefact(folder, name) for name in names), path)


if __name__ == "__main__":
    main()

"""Draw the picture of a verdict for README.md: throughput of the three arms and the boundary in each slot.

Usage: python -m wiring.figures.picture RUN_FOLDER PICTURE.png
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from wiring.figures import claim_figures
from wiring.figures.export_images import write_images
from wiring.figures.plot_template import TEMPLATE
from wiring.layers import describe
from wiring.workbook.artefacts import LayoutDiff, Patch, Rebenchmark
from wiring.workbook.case import validate_artefact


def verdict_picture(layout: LayoutDiff, patch: Patch, rebenchmark: Rebenchmark) -> go.Figure:
    """Return a figure with the throughput of the arms on the left and the layouts by slot on the right."""
    cured = next(cure for cure in patch.cures if cure.form == patch.chosen)
    predicted = rebenchmark.prediction.speedup * rebenchmark.plain.tok_per_s
    bars: Any = claim_figures.throughput((rebenchmark.plain, rebenchmark.as_served, rebenchmark.cured), predicted)
    rows = {"trained": layout.trained, "as served": layout.captured.verify, "cured": cured.captured.verify}
    slots: Any = claim_figures.layouts(rows, layout.trained)
    slots.data[0].text = [[describe(boundary) for boundary in row] for row in rows.values()]
    slots.data[0].textfont.size = 12
    titles = ("Same draft, same server", "Slots of the draft's fc, captured in verify")
    fig = make_subplots(1, 2, column_widths=[0.42, 0.58], subplot_titles=titles, horizontal_spacing=0.14)
    for column, part in enumerate((bars, slots), start=1):
        fig.add_traces(part.data, rows=1, cols=column)
    fig.update_layout(template=TEMPLATE, width=990, height=374, paper_bgcolor="white", margin=dict(t=60, b=60))
    fig.update_layout(legend=dict(x=0, xanchor="left", y=0.98, yanchor="top"))
    fig.update_xaxes(tickvals=bars.layout.xaxis.tickvals, ticktext=bars.layout.xaxis.ticktext, col=1)
    fig.update_yaxes(title=bars.layout.yaxis.title, rangemode="tozero", col=1)
    fig.update_yaxes(autorange="reversed", showgrid=False, col=2)
    fig.update_xaxes(showgrid=False, col=2)
    return fig


def main() -> None:
    """Draw the picture of a run folder."""
    folder, path = Path(sys.argv[1]), Path(sys.argv[2])
    names = ("03_layout", "04_patch", "05_rebenchmark")
    artefacts: Any = [validate_artefact(folder, name) for name in names]
    write_images({path: verdict_picture(*artefacts)})


if __name__ == "__main__":
    main()

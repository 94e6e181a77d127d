"""Write plotly figures to PNG or SVG files with kaleido, which draws them in a local Chrome or Chromium, offline."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from wiring.errors import WiringError
from wiring.workbook.notebook_page import figures_in

FORMATS = ("png", "svg")
_NO_BROWSER = "Install one (Debian: apt install chromium) or set BROWSER_PATH; report.html shows the figures without it"


def find_browser() -> str:
    """Return the path of the browser that kaleido uses: $BROWSER_PATH, or a Chrome or Chromium in the usual places.

    Raises WiringError if there is none.
    """
    from choreographer.browsers.chromium import Chromium

    found = Chromium.find_browser(skip_local=False)
    if found is None or not os.access(found, os.X_OK) or os.path.isdir(found):
        expected = "a Chrome or Chromium"
        raise WiringError(
            "no browser to draw figures",
            code="browser-missing",
            expected=expected,
            found=found or "none",
            remedy=_NO_BROWSER,
        )
    return found


def write_images(figures: Mapping[Path, go.Figure | dict]) -> list[Path]:
    """Write each figure (a plotly figure or its JSON) to its path; the suffix is the format. Return the paths.

    Raises WiringError for another suffix, without a browser, and if the browser fails.
    """
    for path in figures:
        _check_format(path.suffix[1:], path)
    if not figures:
        return []
    browser = find_browser()
    for path in figures:
        path.parent.mkdir(parents=True, exist_ok=True)
    import plotly.io

    paths: list[Any] = list(figures)
    layouts: list[Any] = [
        fig.layout if isinstance(fig, go.Figure) else fig.get("layout", {}) for fig in figures.values()
    ]
    try:
        plotly.io.write_images(
            list(figures.values()),
            paths,
            scale=[2 if path.suffix == ".png" else 1 for path in paths],
            width=[layout["width"] or 760 if "width" in layout else 760 for layout in layouts],
            height=[layout["height"] or 400 if "height" in layout else 400 for layout in layouts],
            validate=False,
        )
    except Exception as error:  # kaleido and choreographer raise many types
        raise WiringError(
            "the browser did not draw the figures", code="figures-not-drawn", where=browser, found=str(error)
        ) from error
    return paths


def write_figures(run: Path, form: str) -> list[Path]:
    """Write every figure of the executed notebooks of a run to run/figures/NN-cell.FORM, and return the paths.

    Raises WiringError for a format other than "png" and "svg", and as `write_images` does.
    """
    _check_format(form, "--images")
    return write_images(
        {
            run / "figures" / f"{path.stem[:2]}-{cell}.{form}": figure
            for path in sorted((run / "notebooks").glob("*.ipynb"))
            for cell, figure in figures_in(path).items()
        }
    )


def _check_format(form: str, where: object) -> None:
    if form not in FORMATS:
        raise WiringError(
            "unknown image format", code="image-format-unknown", where=where, expected="png or svg", found=form
        )

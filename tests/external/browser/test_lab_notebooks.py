"""Each notebook runs in JupyterLab with Run All to its end, and its figures are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_lab import DRAWN, errors_of, figures_of

NAMES = sorted(path.stem for path in (Path(__file__).parents[3] / "notebooks").glob("*.ipynb"))

WHOLE = "outer => { outer.scrollTop = 0; return outer.scrollHeight; }"


@pytest.mark.parametrize("name", NAMES)
def test_run_all_ends_without_an_error_and_draws_every_figure(books, picture, name):
    book = books(name)
    cells = book.saved()
    assert errors_of(cells) == []
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    figures = book.page.locator(".jp-CodeCell .js-plotly-plot")
    book.until(lambda: figures.count() >= figures_of(cells), "every figure is on the page")
    for figure in figures.all():
        figure.scroll_into_view_if_needed()
        book.until(lambda figure=figure: bool(figure.evaluate(f"one => ({DRAWN})(one.parentElement)")), "it is drawn")
    screen = book.page.viewport_size
    height = book.page.locator(".jp-WindowedPanel-outer").evaluate(WHOLE)
    book.page.set_viewport_size({"width": 1440, "height": min(int(height) + 200, 12_000)})
    book.page.wait_for_timeout(1000)  # what came into view is drawn
    picture(book.page)
    book.page.set_viewport_size(screen)
    assert book.errors == []

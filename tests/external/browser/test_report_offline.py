"""report.html of the recorded run, opened as a file by a browser without a network."""

from __future__ import annotations

import shutil

import pytest
from in_lab import DRAWN

from wiring.workbook.case import RECORDED
from wiring.workbook.notebook_page import figures_in
from wiring.workbook.report import write_report
from wiring.workbook.run_notebooks import WORKBOOK
from wiring.workbook.workbook_run import NOTEBOOKS

NAMES = [link.name for link in WORKBOOK]


@pytest.fixture(scope="module")
def trouble():
    """Return the console messages of the page and its network requests."""
    return []


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The run folder: what was recorded, and the committed notebooks as those that were executed."""
    run = tmp_path_factory.mktemp("report") / "cpu-tiny"
    (run / "notebooks").mkdir(parents=True)
    for name in NAMES:
        shutil.copyfile(NOTEBOOKS / f"{name}.ipynb", run / "notebooks" / f"{name}.ipynb")
    for path in (RECORDED / "cpu-tiny").glob("0*.json"):
        shutil.copyfile(path, run / path.name)
    return run


@pytest.fixture(scope="module")
def page(chromium, run, trouble):
    """The report of the recorded run, open."""
    report = write_report(run)
    print(f"\nreport.html: {report.stat().st_size / 1e6:.2f} MB")
    context = chromium.new_context(viewport={"width": 1440, "height": 1000})
    context.set_offline(True)
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.on("console", lambda message: trouble.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda asked: trouble.append(asked.url) if asked.url.startswith("http") else None)
    page.goto(report.as_uri())
    yield page
    context.close()


def test_it_opens_offline_with_every_figure_drawn(page, run, trouble, picture):
    figures = page.locator(".js-plotly-plot")
    assert figures.count() == sum(len(figures_in(path)) for path in (run / "notebooks").iterdir()) >= 9
    for figure in figures.all():
        figure.scroll_into_view_if_needed()
        box = figure.locator("svg.main-svg").first.bounding_box()
        assert box["width"] > 300 and box["height"] > 100
        assert figure.evaluate(f"one => ({DRAWN})(one.parentElement)")
    page.evaluate("scrollTo(0, 0)")
    picture(page, full_page=True)
    assert trouble == []


def test_five_conclusions_stand_on_one_screen_and_lead_on(page, trouble, picture):
    page.evaluate("scrollTo(0, 0)")
    picture(page)
    entries = page.locator("ol.conclusions > li")
    assert entries.count() == 5
    last = entries.last.bounding_box()
    assert last["y"] + last["height"] <= page.viewport_size["height"]
    for entry, name in zip(entries.all(), NAMES, strict=True):
        entry.locator("a").click()
        assert abs(page.locator(f"section[id='{name}']").bounding_box()["y"]) < 50
        page.evaluate("scrollTo(0, 0)")
    checks = entries.first.locator("details")
    checks.locator("summary").click()
    assert checks.locator("tr").count() > 1 and checks.locator("tr").last.is_visible()
    checks.locator("summary").click()
    assert trouble == []


def test_code_is_shown_when_asked(page, trouble):
    code = page.locator(".code_cell .input").first
    assert not code.is_visible()
    page.get_by_label("show the code").check()
    assert code.is_visible()
    page.get_by_label("show the code").uncheck()
    assert trouble == []


def test_paper_gets_all_of_it(page, pictures):
    printed = page.pdf(path=pictures / "report.pdf", format="A4")
    assert printed.startswith(b"%PDF") and page.locator("details:not([open])").count() == 0

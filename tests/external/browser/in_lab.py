"""A notebook open in JupyterLab, as a reader handles it: the menu, the widgets, what is drawn, what is saved."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

PLOTLY = "application/vnd.plotly.v1+json"
END_S = 1800  # the longest notebook takes a minute or two on an idle machine

# What is drawn in an element: the curves, marks, bars and legends of its figures, null while one of them is not drawn.
DRAWN = """
root => {
  const figures = [...root.querySelectorAll(".js-plotly-plot")];
  const shapes = figure => [...figure.querySelectorAll("svg.main-svg path, svg.main-svg text")]
    .map(one => one.getAttribute("d") ?? one.textContent);
  const open = figure => figure.querySelector("svg.main-svg")?.getBoundingClientRect().height > 0;
  return figures.length && figures.every(open) ? JSON.stringify(figures.map(shapes)) : null;
}
"""
TEXT = "root => root.innerText"
# Takes the time from the reader's event to the first frame in which `SEE` gives something else.
WATCH = """
(root, limit) => {
  const see = SEE, before = see(root);
  let begin = null;
  const started = () => { begin ??= performance.now(); };
  for (const kind of ["pointerdown", "keydown", "input", "change"])
    root.addEventListener(kind, started, { capture: true, once: true });
  window.moved = new Promise((done, fail) => {
    const look = () => {
      const now = see(root), spent = performance.now() - begin;
      if (begin !== null && now && now !== before) done(spent);
      else if (begin !== null && spent > limit) fail(new Error("nothing else was shown"));
      else requestAnimationFrame(look);
    };
    look();
  });
}
"""


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab and the checkout that it shows."""

    url: str
    token: str
    checkout: Path

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}/{path}", params={"token": self.token}, trust_env=False, timeout=60)

    def answers(self) -> bool:
        try:
            return self.get("api/status").status_code == 200
        except httpx.TransportError:
            return False

    def state(self, path: str) -> str:
        """What the kernel of a notebook does: "idle", "busy", "" where it has none."""
        found = [one for one in self.get("api/sessions").json() if one["path"] == path]
        return found[0]["kernel"]["execution_state"] if found else ""


class Book:
    """One notebook in a tab of its own. `errors` are the error messages of its console."""

    def __init__(self, page, lab: Lab, name: str):
        self.page, self.lab, self.name = page, lab, name
        self.path = f"notebooks/{name}.ipynb"
        self.errors: list[str] = []
        page.set_default_timeout(120_000)
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(f"{lab.url}/lab/workspaces/{name}/tree/{self.path}?token={lab.token}")
        page.locator(".jp-NotebookPanel .jp-Notebook").wait_for()
        self.until(lambda: lab.state(self.path) == "idle", "the kernel is ready")

    def until(self, holds: Callable[[], bool], what: str, seconds: float = 120) -> None:
        """Wait until `holds()`; fails with `what` after some time."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"{self.name}: not within {seconds:g} s: {what}"
            self.page.wait_for_timeout(300)

    def saved(self) -> list[dict]:
        """The code cells as they are saved now."""
        file = self.lab.checkout / self.path
        before = file.stat().st_mtime_ns
        self.page.keyboard.press("Control+s")
        deadline = time.monotonic() + 5  # what is saved already is not written again
        while file.stat().st_mtime_ns == before and time.monotonic() < deadline:
            self.page.wait_for_timeout(100)
        while not (text := file.read_text()).rstrip().endswith("}"):  # Lab is still writing
            self.page.wait_for_timeout(100)
        return [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]

    def run_all(self) -> None:
        """Run > Run All Cells, to its end: every cell has its number, or one has an error."""
        self.page.locator(".lm-MenuBar-item", has_text=re.compile("^Run$")).click()
        self.page.locator('.lm-Menu-item[data-command="runmenu:run-all"]').click()
        self.until(lambda: self.lab.state(self.path) == "busy" or self._ended(), "the kernel runs")
        self.until(lambda: self.lab.state(self.path) == "idle" and self._ended(), "all cells have run", END_S)

    def _ended(self) -> bool:
        cells = self.saved()
        return all(cell["execution_count"] for cell in cells) or bool(errors_of(cells))

    def cell(self, *labels: str):
        """The output of the one cell that shows a widget with all of these texts."""
        found = self.page.locator(".jp-CodeCell .jp-Cell-outputArea").filter(has=self.page.locator(".widget-vbox"))
        for label in labels:
            found = found.filter(has_text=label)
        found.first.wait_for()
        assert found.count() == 1, f"{labels}: {found.count()} cells"
        found.scroll_into_view_if_needed()
        return found

    def change(self, box, move: Callable[[], object], shown: str = DRAWN) -> float:
        """Make a move in `box`; milliseconds from its event to the frame that shows something else.

        Fails where nothing else is shown, and where before or after a figure is not drawn.
        """
        self.until(lambda: bool(box.evaluate(shown)), "all is drawn")
        box.evaluate(WATCH.replace("SEE", shown.strip()), 60_000)
        move()
        return self.page.evaluate("window.moved")


def errors_of(cells: list[dict]) -> list[str]:
    """What cells failed with."""
    return [f"{o['ename']}: {o['evalue']}" for cell in cells for o in cell["outputs"] if o["output_type"] == "error"]


def figures_of(cells: list[dict]) -> int:
    """Figures among the outputs of cells; those inside widgets are not among them."""
    return sum(PLOTLY in output.get("data", {}) for cell in cells for output in cell["outputs"])


def row(box, label: str):
    """The widget in `box` with this label before it."""
    exact = box.page.locator(".widget-label, .widget-label-basic", has_text=re.compile(f"^{re.escape(label)}$"))
    return box.locator(".widget-inline-hbox, .widget-inline-vbox").filter(has=exact)


def slide(box, label: str, key: str = "ArrowRight") -> None:
    """Move a slider by the keyboard: an arrow is one step, PageUp and PageDown are five."""
    row(box, label).locator(".noUi-handle").press(key)


def button(box, text: str):
    """The button in `box` that begins with `text`."""
    return box.locator("button", has_text=re.compile(f"^{re.escape(text)}"))

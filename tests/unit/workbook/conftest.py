"""Toy runs: notebooks of a few lines in a temporary folder, run by the real machinery."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from wiring.workbook.run_notebooks import NotebookStep, RunPlan, RunResult, plan_run, run_notebooks

PARAMETERS = 'profile: str = ""\nrun: str = ""\nmeasure: str = "recorded"\nfactor: int = 2\nloud: bool = False'
WORK = """
import json, pathlib
number = "{number}"
before = pathlib.Path(run, "{before}") if "{before}" else None
value = factor * (json.loads(before.read_text())["value"] if before else 1)
with open(pathlib.Path(profile).parent / "executions.txt", "a") as handle:
    handle.write(number)
"""
WRITE = 'pathlib.Path(run, "{artefact}.json").write_text(json.dumps({{"value": value, "measure": measure}}))'


def wait_for(condition, seconds: float, what: str):
    """Poll until `condition()` is true; what it gave. Fails the test after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.1)
    pytest.fail(f"{what} did not happen within {seconds} s")


def alive(pid: int) -> bool:
    """Whether the process lives (a zombie does not)."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@dataclass
class Toy:
    """Steps 01, 02, 03, in which each notebook multiplies the value of the step before by `factor`."""

    root: Path
    parameters = PARAMETERS
    wait_for = staticmethod(wait_for)
    alive = staticmethod(alive)
    steps = tuple(NotebookStep(f"{n:02d}_step", f"{n:02d}_value") for n in (1, 2, 3))

    @property
    def profile(self) -> Path:
        return self.root / "toy.yaml"

    @property
    def run(self) -> Path:
        return self.root / "runs" / "toy"

    def write(self, number: int, *, extra: str = "", parameters: str | None = PARAMETERS, write: str = WRITE) -> Path:
        """Write notebook `number` with `extra` code between its work and its artefact."""
        step = self.steps[number - 1]
        before = f"{self.steps[number - 2].artefact}.json" if number > 1 else ""
        cells = [new_markdown_cell(f"# Step {number}", id="title")]
        if parameters is not None:
            cell = new_code_cell(parameters, id="parameters")
            cell.metadata.tags = ["parameters"]
            cells.append(cell)
        cells.append(new_code_cell(WORK.format(number=number, before=before).strip(), id="work"))
        if extra:
            cells.append(new_code_cell(textwrap.dedent(extra).strip(), id="extra"))
        cells.append(new_code_cell(write.format(artefact=step.artefact), id="write"))
        book = new_notebook(cells=cells)
        book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        path = self.root / "notebooks" / f"{step.name}.ipynb"
        nbformat.write(book, path)
        return path

    def plan(self, overrides: dict | None = None, count: int = 3) -> RunPlan:
        """The plan of the first `count` steps."""
        return plan_run(
            self.profile,
            run_root=self.root / "runs",
            notebooks_dir=self.root / "notebooks",
            steps=self.steps[:count],
            library=self.root / "library",
            overrides=overrides,
        )

    def chain(self, count: int = 3, overrides: dict | None = None, **more) -> RunResult:
        """Run the first `count` steps in this process."""
        return run_notebooks(self.plan(overrides, count), overrides=overrides, **more)

    def start(self, count: int) -> subprocess.Popen:
        """Run the first `count` steps in a process of its own, as a terminal would."""
        code = (
            "import sys; from pathlib import Path\n"
            "from wiring.workbook.run_notebooks import NotebookStep, plan_run, run_notebooks\n"
            "from wiring.workbook.execute import Terminated\n"
            f"root = Path({str(self.root)!r})\n"
            f"steps = [NotebookStep(*pair) for pair in {[(s.name, s.artefact) for s in self.steps[:count]]!r}]\n"
            "try:\n"
            "    run_notebooks(plan_run(root / 'toy.yaml', run_root=root / 'runs', notebooks_dir=root / 'notebooks',"
            " steps=steps, library=root / 'library'))\n"
            "except KeyboardInterrupt: sys.exit(130)\n"
            "except Terminated: sys.exit(143)\n"
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(
            [sys.executable, "-c", code], stderr=subprocess.PIPE, start_new_session=True, env=environment
        )

    def executions(self) -> str:
        """The numbers of the notebooks that executed, in order, over all runs."""
        path = self.root / "executions.txt"
        return path.read_text() if path.exists() else ""

    def value(self, number: int) -> int:
        """The value in artefact `number`."""
        return json.loads((self.run / f"{self.steps[number - 1].artefact}.json").read_text())["value"]

    def markers(self) -> list[str]:
        """The done-markers that are there."""
        return sorted(path.name for path in self.run.glob("*.done.json"))

    def executed(self, number: int) -> dict:
        """The saved notebook of the run, as JSON."""
        return json.loads((self.run / "notebooks" / f"{self.steps[number - 1].name}.ipynb").read_text())

    def statuses(self, number: int) -> dict[str, str]:
        """papermill's status of each code cell of the saved notebook, by id (injected cells by their tag)."""
        return {
            cell["id"]: cell["metadata"]["papermill"]["status"]
            for cell in self.executed(number)["cells"]
            if cell["cell_type"] == "code" and "injected-parameters" not in cell["metadata"].get("tags", [])
        }


@pytest.fixture
def toy(tmp_path) -> Toy:
    """Three toy notebooks, a profile that names an input file, and a small library."""
    for name in ("notebooks", "library", "input"):
        (tmp_path / name).mkdir()
    (tmp_path / "library" / "code.py").write_text("one = 1\n")
    (tmp_path / "input" / "data.txt").write_text("data\n")
    (tmp_path / "toy.yaml").write_text("name: toy\ntarget: input\nrate: 0.5\n")
    toy = Toy(tmp_path)
    for number in (1, 2, 3):
        toy.write(number)
    return toy


@pytest.fixture
def in_process(monkeypatch):
    """Execute notebooks in this process, in milliseconds: for tests of what runs when, not of how it runs."""

    def execute(job, log, progress, started):
        book = nbformat.read(job.source, as_version=4)
        scope: dict = {}
        for cell in book.cells:
            if cell.cell_type == "code":
                exec(cell.source, scope)
                if "parameters" in cell.metadata.get("tags", []):
                    scope.update(job.parameters)
        Path(job.output).parent.mkdir(exist_ok=True)
        nbformat.write(book, job.output)

    monkeypatch.setattr("wiring.workbook.run_notebooks.execute", execute)


@pytest.fixture
def process_zoo(tmp_path):
    """Code for a cell that starts a child in its own session and one that is an orphan, and notes all pids.

    Gives (code, pids): pids() is empty until the cell is through, then kernel, child and orphan.
    """
    notes = tmp_path / "pids.json"
    code = f"""
        import json, os, pathlib, subprocess, sys
        sleep = [sys.executable, "-c", "import time; time.sleep(300)"]
        child = subprocess.Popen(sleep, start_new_session=True)
        daemon = (
            "import subprocess, sys\\n"
            "print(subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, start_new_session=True).pid)"
        )
        orphan = subprocess.run([sys.executable, "-c", daemon, *sleep], stdout=subprocess.PIPE, text=True).stdout
        notes = pathlib.Path({str(notes)!r})
        notes.with_suffix(".tmp").write_text(json.dumps([os.getpid(), child.pid, int(orphan)]))
        notes.with_suffix(".tmp").rename(notes)
    """

    def pids() -> list[int]:
        return json.loads(notes.read_text()) if notes.exists() else []

    yield textwrap.dedent(code), pids
    for pid in pids():
        if alive(pid):
            os.kill(pid, signal.SIGKILL)

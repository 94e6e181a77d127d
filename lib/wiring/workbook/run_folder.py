"""The run folder: what marks it as ours, who may write it now, what it holds of each notebook."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from wiring.checkpoints.atomic import write_json
from wiring.errors import WiringError

RECORD = ".wiring-run"
RESULTS = ("summary.json", "report.html")
_LOCK = ".lock"
_MADE_BY = "wiring"
_FAREWELL_S = 10.0  # a chain that was killed is ended by its worker within this time


def number(name: str) -> str:
    """The number in front of a notebook's or an artefact's name: "03" of "03_layout_diff"."""
    return name.split("_", 1)[0]


class RunFolder:
    """`runs/<case>/`: artefacts `NN_*`, markers `NN.done.json`, notebooks/, logs/, summary.json, report.html."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def name(self) -> str:
        """The case."""
        return self.path.name

    def output(self, notebook: str) -> Path:
        """Where the executed notebook goes."""
        return self.path / "notebooks" / f"{notebook}.ipynb"

    def log(self, notebook: str) -> Path:
        """Where its log goes."""
        return self.path / "logs" / f"{notebook}.log"

    def marker(self, notebook: str) -> Path:
        """Its done-marker."""
        return self.path / f"{number(notebook)}.done.json"

    def artefacts(self, notebook: str) -> list[Path]:
        """The files that it left for those behind it."""
        return sorted(path for path in self.path.glob(f"{number(notebook)}_*") if path.is_file())

    def forget(self, notebook: str) -> None:
        """Remove what an earlier run of the notebook left; the marker first, so that a cut leaves no lie."""
        for path in (self.marker(notebook), *self.artefacts(notebook), self.output(notebook)):
            path.unlink(missing_ok=True)

    def has_results(self) -> bool:
        """Whether summary and report are there."""
        return all((self.path / name).is_file() for name in RESULTS)

    def forget_results(self) -> None:
        """Remove the summary and the report: they speak of artefacts that are about to change."""
        for name in RESULTS:
            (self.path / name).unlink(missing_ok=True)

    def create(self) -> None:
        """Make the folder; WiringError where its place is taken by something else or cannot be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WiringError("the run folder cannot be made", where=self.path, found=error.strerror) from error
        if any(path.name != _LOCK for path in self.path.iterdir()) and not is_run_folder(self.path):
            raise WiringError(
                "this folder was not made by a run and is left alone",
                where=self.path,
                remedy="Choose another with --runs",
            )

    def sign(self, profile: Path, overrides: Mapping[str, object]) -> None:
        """Mark the folder as ours and note what runs here, for `wiring resume`."""
        write_json(self.path / RECORD, {"made_by": _MADE_BY, "profile": str(profile), "overrides": dict(overrides)})

    def remove(self) -> None:
        """Delete the folder; WiringError where it is not a run's, or a chain is at work in it."""
        if not is_run_folder(self.path):
            raise WiringError("this is not a run folder and is left alone", where=self.path, expected=f"a {RECORD}")
        with self.locked():
            shutil.rmtree(self.path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the folder alone; gives the descriptor that holds it. WiringError where another chain does."""
        try:
            descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise WiringError("the run folder cannot be written", where=self.path, found=error.strerror) from error
        try:
            _take(descriptor, self.path)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield descriptor
        finally:
            os.close(descriptor)


def _take(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + _FAREWELL_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode()
            if _lives(holder) or time.monotonic() > deadline:
                raise WiringError(
                    "another chain is writing this run folder",
                    where=path,
                    found=f"process {holder or 'unknown'}",
                    remedy="Wait for it or stop it; or use another run folder with --runs",
                ) from None
            time.sleep(0.1)  # its worker is still ending what it had started


def _lives(pid: str) -> bool:
    return pid.isdigit() and Path("/proc", pid).exists() if Path("/proc/self").exists() else True


def is_run_folder(path: Path) -> bool:
    """Whether the folder was made by a run."""
    return read_record(path) is not None


def read_record(path: Path) -> dict | None:
    """What the record says (profile, overrides), or None where the folder is not a run's."""
    try:
        record = json.loads((path / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("made_by") == _MADE_BY else None

"""The run folder: what marks it as ours, the lock that one run holds, and the files of each notebook."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from wiring.checkpoints.atomic import write_json
from wiring.errors import WiringError

RECORD = ".wiring-run"
RESULTS = ("summary.json", "report.html")
_LOCK, _HOLDER, _PROCESS = ".lock", ".lock-holder", ".notebook-process"
_MADE_BY = "wiring"
_LOCK_WAIT_S = 0.5
_KILLED_RUN_S = 10.0


def number(name: str) -> str:
    """Return the number of a notebook's or an artefact's name: "03" of "03_layout_diff"."""
    return name.split("_", 1)[0]


class RunFolder:
    """`runs/<case>/`: artefacts `NN_*`, markers `NN.done.json`, notebooks/, logs/, summary.json, report.html."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def name(self) -> str:
        """Return the name of the case."""
        return self.path.name

    def output(self, notebook: str) -> Path:
        """Return the path of the executed notebook."""
        return self.path / "notebooks" / f"{notebook}.ipynb"

    def log(self, notebook: str) -> Path:
        """Return the path of the notebook's log."""
        return self.path / "logs" / f"{notebook}.log"

    def marker(self, notebook: str) -> Path:
        """Return the path of the notebook's done-marker."""
        return self.path / f"{number(notebook)}.done.json"

    def artefacts(self, notebook: str) -> list[Path]:
        """Return the files that the notebook left for later ones."""
        return sorted(path for path in self.path.glob(f"{number(notebook)}_*") if path.is_file())

    def forget(self, notebook: str) -> None:
        """Remove what an earlier run of the notebook left.

        Delete the marker first, so an interrupted cleanup never leaves a marker without its files.
        """
        for path in (self.marker(notebook), *self.artefacts(notebook), self.output(notebook)):
            path.unlink(missing_ok=True)

    def has_results(self) -> bool:
        """Return whether summary and report exist."""
        return all((self.path / name).is_file() for name in RESULTS)

    def forget_results(self) -> None:
        """Remove summary and report, which are about artefacts that will change."""
        for name in RESULTS:
            (self.path / name).unlink(missing_ok=True)

    def create(self) -> None:
        """Create the folder. Raises WiringError: run-folder-not-writable, not-a-run-folder."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _not_writable(self.path, error) from error
        if any(path.name not in (_LOCK, _HOLDER, _PROCESS) for path in self.path.iterdir()) and not is_run_folder(
            self.path
        ):
            raise WiringError(
                "this folder was not made by a run, so it is not touched",
                code="not-a-run-folder",
                where=self.path,
                remedy="Choose another with --runs",
            )

    def sign(self, profile: Path, overrides: Mapping[str, object]) -> None:
        """Mark the folder as ours and record its profile and settings, for `wiring resume`."""
        write_json(self.path / RECORD, {"made_by": _MADE_BY, "profile": str(profile), "overrides": dict(overrides)})

    def remove(self) -> None:
        """Delete the folder. Raises WiringError: not-a-run-folder, run-folder-locked."""
        if not is_run_folder(self.path):
            raise WiringError(
                "not a run folder, so it is not touched",
                code="not-a-run-folder",
                where=self.path,
                expected=f"a {RECORD}",
            )
        with self.locked():
            shutil.rmtree(self.path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock. Raises WiringError: run-folder-locked, run-folder-not-writable."""
        holder = self.path / _HOLDER
        lock = FileLock(self.path / _LOCK)
        try:
            lock.acquire(timeout=_LOCK_WAIT_S)
        except Timeout:
            pid = holder.read_text(encoding="utf-8") if holder.is_file() else "unknown"
            raise WiringError(
                "another run is writing this folder",
                code="run-folder-locked",
                where=self.path,
                found=f"process {pid}",
                remedy="Wait for it or stop it; or use another folder with --runs",
            ) from None
        except OSError as error:
            raise _not_writable(self.path, error) from error
        try:
            self._wait_for_killed_run()
            holder.write_text(str(os.getpid()), encoding="utf-8")
            yield
            (self.path / _PROCESS).unlink(missing_ok=True)
        finally:
            lock.release()

    def note_process(self, pid: int) -> None:
        """Record the process that executes a notebook now, for a run that follows after this one was killed."""
        (self.path / _PROCESS).write_text(str(pid), encoding="utf-8")

    def _wait_for_killed_run(self) -> None:
        """Wait until the process tree of a killed run has ended; its supervisor ends it within seconds."""
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            process = psutil.Process(int((self.path / _PROCESS).read_text(encoding="utf-8")))
            if "wiring.workbook.notebook_process" in process.cmdline():
                process.wait(_KILLED_RUN_S)


def _not_writable(path: Path, error: OSError) -> WiringError:
    return WiringError(
        "the run folder cannot be written", code="run-folder-not-writable", where=path, found=error.strerror
    )


def is_run_folder(path: Path) -> bool:
    """Return whether the folder was made by a run."""
    return read_record(path) is not None


def read_record(path: Path) -> dict | None:
    """Return the record of a run folder (profile, overrides); None where it is no run folder."""
    try:
        record = json.loads((path / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("made_by") == _MADE_BY else None

"""A case: its profile, the folder of its artefacts, and whether the server is measured now."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from wiring.checkpoints.atomic import write_text
from wiring.errors import WiringError
from wiring.workbook.artefacts import ARTEFACTS, Artefact
from wiring.workbook.profile import REPOSITORY, Profile, load_profile
from wiring.workbook.summary import Summary, summarize

RECORDED = REPOSITORY / "data" / "recorded"
RUNS = REPOSITORY / "runs"
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Case:
    """One run of a profile.

    `folder` takes what this run makes. `recorded` holds what `make notebooks` recorded from a live run; a
    notebook that runs alone reads its predecessors' artefacts from there.
    """

    profile: Profile
    folder: Path
    recorded: Path
    measure: Literal["live", "recorded"]
    standalone: bool

    @property
    def live(self) -> bool:
        """Return whether the server is measured now rather than read from the recorded run."""
        return self.measure == "live"

    def write(self, name: str, value: BaseModel) -> Path:
        """Write `name`.json into the run folder, atomically."""
        return write_text(self.folder / f"{name}.json", value.model_dump_json(indent=1) + "\n")

    def read(self, name: str, model: type[M]) -> M:
        """Read `name`.json of this run; alone (no run folder) the recorded one.

        Raises WiringError when it is absent or not of this release's shape.
        """
        return _read(self._home() / f"{name}.json", model)

    def read_recorded(self, name: str, model: type[M]) -> M:
        """Read `name`.json of the recorded run."""
        return _read(self.recorded / f"{name}.json", model)

    def measured_file(self, name: str) -> Path:
        """Return the path of a measurement: in the run when measured now, else in the recorded run."""
        return (self.folder if self.live else self.recorded) / name

    def _home(self) -> Path:
        return self.recorded if self.standalone else self.folder

    def logs(self) -> Path:
        """Return the folder of the server logs."""
        path = self.folder / "logs"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def scratch(self, name: str) -> Path:
        """Return a folder of this run for copies and captures; its parent exists."""
        (self.folder / "scratch").mkdir(parents=True, exist_ok=True)
        return self.folder / "scratch" / name


def open_case(*, profile: str, run: str = "", measure: str = "recorded") -> Case:
    """Open a case from a notebook's parameters.

    `profile` is a name or a YAML path; `run` the run folder ("" = alone, in runs/alone-<profile>); `measure` is
    "live" or "recorded". Raises WiringError for anything else, before anything is measured.
    """
    if measure not in ("live", "recorded"):
        raise WiringError(
            "unknown value of measure",
            code="unknown-measure",
            where="measure",
            expected="live or recorded",
            found=repr(measure),
        )
    loaded = load_profile(profile)
    recorded = RECORDED / loaded.name
    if measure == "recorded" and not recorded.is_dir():
        raise WiringError(
            "no recorded run for this profile",
            code="profile-not-recorded",
            where=recorded,
            expected="the artefacts of a live run",
            remedy='Set measure = "live", or run `make run` with this profile',
        )
    folder = Path(run).expanduser().resolve() if run else RUNS / f"alone-{loaded.name}"
    folder.mkdir(parents=True, exist_ok=True)
    return Case(profile=loaded, folder=folder, recorded=recorded, measure=measure, standalone=not run)


def validate_artefact(folder: Path, name: str) -> Any:
    """Read a notebook's artefact by its name ("01_throughput") as its class in ARTEFACTS.

    Raises WiringError when it is not valid.
    """
    return _read(folder / f"{name}.json", ARTEFACTS[name])


def write_summary(folder: Path, case: str) -> Summary:
    """Join the five artefacts of a run folder into summary.json."""
    summary = summarize(case, *(validate_artefact(folder, name) for name in ARTEFACTS))
    write_text(folder / "summary.json", summary.model_dump_json(indent=2) + "\n")
    return summary


def record(folder: Path, profile: str) -> Path:
    """Copy the artefacts of a finished live run to data/recorded/<profile>, replacing what was there.

    Raises WiringError when an artefact is missing or was not measured live.
    """
    for name in ARTEFACTS:
        if validate_artefact(folder, name).source != "live":
            raise WiringError(
                "only a live run can be recorded",
                code="run-not-live",
                where=folder / f"{name}.json",
                remedy="Run the chain first",
            )
    goal = RECORDED / load_profile(profile).name
    building = goal.with_name(f".{goal.name}.tmp")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".safetensors") and not path.name.endswith(".done.json"):
            shutil.copyfile(path, building / path.name)
    shutil.rmtree(goal, ignore_errors=True)
    building.rename(goal)
    return goal


def _read(path: Path, model: type[M]) -> M:
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise WiringError(
            "artefact not found",
            code="artefact-missing",
            where=path,
            expected=f"the artefact {path.stem}",
            found="no file",
            remedy="Run the notebooks before this one in the same run folder, or leave `run` empty",
        ) from None
    except (ValidationError, json.JSONDecodeError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        raise WiringError(
            "not an artefact of this release",
            code="artefact-invalid",
            where=f"{path}, field {'.'.join(map(str, first['loc']))}",
            found=first["msg"],
            remedy="Run its notebook again",
        ) from None


__all__ = ["Artefact", "Case", "RECORDED", "RUNS", "open_case", "record", "validate_artefact", "write_summary"]

"""Run the notebooks of a chain in order; skip those whose result still stands."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

import wiring
from wiring.errors import WiringError
from wiring.workbook.cache_keys import (
    Done,
    file_digest,
    inputs_digest,
    installed_versions,
    notebook_key,
    profile_inputs,
    read_done,
    still_stands,
    tree_digest,
    write_done,
)
from wiring.workbook.execute import ending_on_signals, execute
from wiring.workbook.notebook_job import Order
from wiring.workbook.notebook_parameters import open_notebook, read_parameters, settle
from wiring.workbook.run_folder import RunFolder
from wiring.workbook.run_progress import Progress, clock

LIBRARY = Path(wiring.__file__).resolve().parent
REPOSITORY = LIBRARY.parents[1]
CELL_TIMEOUT_S = 1800


@dataclass(frozen=True)
class Link:
    """One notebook of a chain: its name, the artefact it must leave, how long it usually takes ("" = unknown)."""

    name: str
    artefact: str
    usual: str = ""


WORKBOOK = (
    Link("01_throughput_symptom", "01_throughput", "3 minutes"),
    Link("02_standalone_accuracy", "02_accuracy", "1 minute"),
    Link("03_layout_diff", "03_layout", "2 minutes"),
    Link("04_embedding_capture_patch", "04_patch", "2 minutes"),
    Link("05_rebenchmark", "05_rebenchmark", "7 minutes"),
)


@dataclass(frozen=True)
class ChainResult:
    """The run folder and which notebooks ran or were resumed (their result stood), in order."""

    run: Path
    ran: tuple[str, ...]
    resumed: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """A chain before anything of it runs: where it runs, what with, and what else its results depend on."""

    profile: Path
    folder: RunFolder
    links: tuple[Link, ...]
    sources: dict[str, Path]  # a notebook's name -> its file
    values: dict[str, dict[str, object]]  # a notebook's name -> its parameters
    surroundings: object

    def key(self, link: Link, upstream: str) -> str:
        """The key of a notebook behind `upstream`, which is what its predecessor passes on ("" for the first)."""
        dependent = {key: value for key, value in self.values[link.name].items() if key not in ("profile", "run")}
        return notebook_key(open_notebook(self.sources[link.name]), dependent, upstream, self.surroundings)


def plan_chain(
    profile: str | Path,
    *,
    run_root: str | Path = REPOSITORY / "runs",
    notebooks_dir: str | Path = REPOSITORY / "notebooks",
    links: Sequence[Link] = WORKBOOK,
    overrides: Mapping[str, object] | None = None,
    library: Path = LIBRARY,
) -> Plan:
    """What `run_chain` would run with these arguments; nothing is written.

    Raises WiringError for a missing profile or notebook and for unknown or mistyped parameters.
    """
    profile, notebooks_dir = Path(profile).resolve(), Path(notebooks_dir).resolve()
    folder = RunFolder(Path(run_root).resolve() / case_name(profile))
    given = {"profile": str(profile), "run": str(folder.path), "measure": "live"}
    sources = {link.name: notebooks_dir / f"{link.name}.ipynb" for link in links}
    values = settle({name: read_parameters(path) for name, path in sources.items()}, given, dict(overrides or {}))
    surroundings = [
        tree_digest(library, (".py",)),
        inputs_digest(profile_inputs(profile, folder.path)),
        installed_versions(),
    ]
    return Plan(profile, folder, tuple(links), sources, values, surroundings)


def run_chain(
    profile: str | Path,
    *,
    run_root: str | Path = REPOSITORY / "runs",
    notebooks_dir: str | Path = REPOSITORY / "notebooks",
    links: Sequence[Link] = WORKBOOK,
    names: Sequence[str] | None = None,
    resume: bool = True,
    overrides: Mapping[str, object] | None = None,
    execution_timeout: int = CELL_TIMEOUT_S,
    validate: Callable[[Path, str], object] | None = None,
    finish: Callable[[Path], object] | None = None,
    library: Path = LIBRARY,
    progress: Progress | None = None,
) -> ChainResult:
    """Run the notebooks of `links` (only those in `names`, where given) on a profile, into run_root/<case>.

    `overrides` are parameters for every notebook that declares them. `execution_timeout` is seconds per cell.
    `validate(run folder, artefact name)` raises where an artefact is not what it should be; `finish(run folder)`
    is called, still under the folder's lock, when all notebooks stand and at least one ran or its results are gone.

    Raises WiringError, before anything runs, for a missing profile or notebook, for unknown or mistyped parameters and
    for a folder that another chain writes; later, for a notebook that failed. KeyboardInterrupt and Terminated end
    everything within 10 s and go on to the caller.
    """
    progress = progress or Progress()
    overrides = dict(overrides or {})
    plan = plan_chain(
        profile,
        run_root=run_root,
        notebooks_dir=notebooks_dir,
        links=_selected(links, names),
        overrides=overrides,
        library=library,
    )
    folder, links = plan.folder, plan.links
    _refuse_bad_timeout(execution_timeout)
    folder.create()
    ran: list[str] = []
    resumed: list[str] = []
    upstream = ""
    with folder.locked() as lock, ending_on_signals():
        folder.sign(plan.profile, overrides)
        for position, link in enumerate(links):
            key = plan.key(link, upstream)
            done = _standing(folder, link, key, validate) if resume else None
            if done is not None:
                progress.say(f"{link.name}: unchanged, its result stands")
                resumed.append(link.name)
            else:
                for later in links[position:]:
                    folder.forget(later.name)
                folder.forget_results()
                order = Order(
                    str(plan.sources[link.name]),
                    str(folder.output(link.name)),
                    plan.values[link.name],
                    str(plan.sources[link.name].parent),
                    execution_timeout,
                )
                done = _run_one(folder, link, order, key, validate, progress, lock)
                ran.append(link.name)
            upstream = done.passes_on
        if finish is not None and (ran or not folder.has_results()):
            finish(folder.path)
    return ChainResult(folder.path, tuple(ran), tuple(resumed))


def case_name(profile: Path) -> str:
    """The case of a profile: its `name`, or the file's name where it has none."""
    profile_inputs(profile, profile)  # readable and YAML, or a WiringError
    content = yaml.safe_load(profile.read_text(encoding="utf-8"))
    name = content.get("name", profile.stem) if isinstance(content, dict) else profile.stem
    if not isinstance(name, str) or not name or name != Path(name).name or name.startswith("."):
        raise WiringError("the case's name cannot name a folder", where=f"{profile}, field name", found=repr(name))
    return name


def _selected(links: Sequence[Link], names: Sequence[str] | None) -> tuple[Link, ...]:
    if names is None:
        return tuple(links)
    known = [link.name for link in links]
    for name in names:
        if name not in known:
            raise WiringError("the chain has no such notebook", expected=", ".join(known), found=name)
    return tuple(link for link in links if link.name in names)


def _refuse_bad_timeout(seconds: int) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int) or seconds < 1:
        raise WiringError("a cell's time must be a whole number of seconds, 1 or more", found=repr(seconds))


def _standing(folder: RunFolder, link: Link, key: str, validate) -> Done | None:
    done = read_done(folder.marker(link.name))
    artefact = f"{link.artefact}.json"
    if done is None or done.key != key or artefact not in done.files or not still_stands(done, folder.path):
        return None
    if not folder.output(link.name).is_file():
        return None
    try:
        if validate is not None:
            validate(folder.path, link.artefact)
    except WiringError:
        return None
    return done


def _run_one(folder: RunFolder, link: Link, order: Order, key: str, validate, progress: Progress, lock: int) -> Done:
    log, began = folder.log(link.name), time.monotonic()
    progress.start(link.name, link.usual, log)
    try:
        execute(order, log, progress, lock)
        _check_artefact(folder, link, order, validate)
    except BaseException:
        progress.end("did not complete")
        raise
    seconds = time.monotonic() - began
    done = Done(key, {path.name: file_digest(path) for path in folder.artefacts(link.name)})
    write_done(
        folder.marker(link.name),
        done,
        notebook=link.name,
        finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        took=clock(seconds),
    )
    progress.end("done")
    return done


def _check_artefact(folder: RunFolder, link: Link, order: Order, validate) -> None:
    path = folder.path / f"{link.artefact}.json"
    if not path.is_file():
        raise WiringError(
            "the notebook ran to its end but left no artefact",
            where=link.name,
            expected=path,
            remedy=f"Look into {order.output}",
        )
    try:
        if validate is not None:
            validate(folder.path, link.artefact)
    except WiringError as error:
        raise WiringError(f"the notebook left an artefact that is not valid: {error}", where=link.name) from error

"""The index of the workbook: the cases, the state of their runs, and links to open them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from wiring.errors import WiringError
from wiring.workbook.live import check_ready
from wiring.workbook.notebook_copies import FOLDER
from wiring.workbook.profile import PROFILES, Profile, load_profile, read_profile
from wiring.workbook.run_folder import RESULTS
from wiring.workbook.run_status import StepStatus
from wiring.workbook.workbook_run import NOTEBOOKS, RUNS, plan_workbook, recorded_call, run_folders, workbook_steps

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Overview:
    """One case: its profile, its run folder (existing or not), its five steps, and why it cannot run here ("")."""

    profile: Path
    run: Path
    steps: tuple[StepStatus, ...]
    problem: str = ""


def cases(runs: str | Path = RUNS) -> dict[str, Path]:
    """Return the cases to choose from, "case (file)" -> profile: data/profiles, and the profiles of runs."""
    found = {path.resolve() for path in PROFILES.glob("*.yaml")}
    found |= {recorded_call(run)[0].resolve() for run in run_folders(runs)}
    named = {}
    for path in sorted(path for path in found if path.is_file()):
        try:
            named[f"{read_profile(path).name} ({path.name})"] = path
        except WiringError:  # it can still be chosen by its path, which reports the error
            continue
    return named


def overview(profile: str | Path, runs: str | Path = RUNS) -> Overview:
    """Return the state of the run of a profile. Raises WiringError for a missing profile or invalid YAML."""
    plan = plan_workbook(profile, runs)
    problem = ""
    try:
        check_ready(read_profile(plan.profile), plan.profile)
        load_profile(plan.profile)
    except WiringError as error:
        problem = str(error)
    return Overview(plan.profile, plan.folder.path, workbook_steps(plan), problem)


def profile_table(profile: str | Path) -> pd.DataFrame:
    """Return the main fields of a profile as a table, with its paths as written."""
    import pandas as pd

    asked = read_profile(profile)
    speculation, benchmark = asked.speculation, asked.benchmark
    rows = {
        "target": asked.target,
        "draft": asked.draft,
        "trained layout": asked.layout,
        "saved boundaries": asked.states.boundaries,
        "validation accuracy": asked.validation_accuracy,
        "speculation asked": f"{speculation.steps} steps, top-k {speculation.topk}, {speculation.draft_tokens} tokens",
        "engine": _engine(asked),
        "benchmark": f"{benchmark.prompts} prompts of {benchmark.new_tokens} tokens, {benchmark.arms}",
    }
    return pd.DataFrame({"value": {name: str(value) for name, value in rows.items()}})


def _engine(profile: Profile) -> str:
    engine = profile.engine
    urls = ", ".join(url for url in (engine.url, engine.plain_url) if url)
    if not urls:
        return f"{engine.device}, {engine.dtype}; servers are started on 127.0.0.1"
    return f"{engine.device}, {engine.dtype}; attached to {urls}{' (read-only)' if engine.read_only else ''}"


def markdown(found: Overview, beside: Path = NOTEBOOKS) -> str:
    """Return the overview as Markdown; links are relative to `beside` and stay below its parent, Lab's root."""

    def link(text: str, path: Path) -> str:
        there = path.is_file() and path.is_relative_to(beside.parent)
        return f"[{text}]({quote(os.path.relpath(path, beside))})" if there else ""

    lines = [f"**{found.run.name}** · profile `{found.profile}` · run `{found.run}`", ""]
    lines += ["| step | state | | finished (UTC) | took | open |", "|---|---|---|---|---|---|"]
    run = found.run
    for step in found.steps:
        file = f"{step.name}.ipynb"
        places = {"notebook": beside / file, "as run": run / "notebooks" / file, "by hand": run / FOLDER / file}
        opened = " · ".join(filter(None, (link(text, path) for text, path in places.items())))
        name = step.name.replace("_", " ")
        cells = (name, f"**{step.state}**", _cell(step.why), step.finished, step.took, opened)
        lines.append("| " + " | ".join(cells) + " |")
    results = " · ".join(filter(None, (link(name, run / name) for name in RESULTS)))
    if results:
        lines += ["", f"Verdict: {results} (in Lab press Trust HTML)"]
    if following := next((step for step in found.steps if step.state != "ran"), None):
        lines += ["", f"Next: {following.name.replace('_', ' ')}, or `make run PROFILE={found.profile}`"]
    if found.problem:
        lines += ["", f"**Not on this machine as it is:** {_cell(found.problem)}"]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")

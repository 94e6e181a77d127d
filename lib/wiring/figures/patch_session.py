"""State of the patch panel: one fix at a time is planned, applied to copies, proved and undone.

The user's draft and the installed SGLang are never written. Copies go to the run folder, or to a folder that the user
names and confirms.
"""

from __future__ import annotations

import json
import shlex
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from wiring.checkpoints.target_files import read_target_config
from wiring.checkpoints.tensor_files import read_json
from wiring.errors import WiringError
from wiring.figures.fragments import side_by_side
from wiring.patch.copies import AppliedFix, check_destination, source_change, verify_copy
from wiring.patch.fix_kinds import FixKind, with_ids
from wiring.patch.plan import Fix, FixPlan
from wiring.patch.source import SglangTree, check_sites, find_tree
from wiring.server.server_spec import server_command
from wiring.workbook.case import Case
from wiring.workbook.fixes import applied, digests
from wiring.workbook.live import server_spec

STEPS = ("plan", "apply", "prove", "undo")


@dataclass(frozen=True)
class Step:
    """State of a step ("not yet", "done" or "failed") and its result as text."""

    name: str
    state: str = "not yet"
    text: str = ""


class PatchSession:
    """The fixes of one plan for the SGLang at `tree`; `steps` by name, in order."""

    def __init__(self, case: Case, plan: FixPlan, tree: SglangTree):
        self.case, self.plan, self._tree = case, plan, tree
        self._stack = ExitStack()
        self._applied: tuple[Fix, AppliedFix] | None = None
        self._digests: dict[str, str] = {}  # of the user's files, before the fix was applied
        self.steps = {name: Step(name) for name in STEPS}
        forms = ", ".join(self.forms) or "none"
        self._set("plan", "done", f"fixes for SGLang {plan.version}, least invasive first: {forms}. {plan.advice}")

    @property
    def forms(self) -> tuple[FixKind, ...]:
        """The kinds of fix in the plan."""
        return tuple(fix.form for fix in self.plan.fixes)

    @property
    def applied(self) -> bool:
        """Whether a fix is applied now."""
        return self._applied is not None

    def diff(self, form: FixKind) -> str:
        """Return the whole change side by side, as HTML; writes nothing."""
        fix = self._planned(form)
        config = read_json(self.case.profile.draft / "config.json", "the draft's config")
        before, after = (json.dumps(one, indent=2) for one in (config, with_ids(config, fix.ids)))
        changes = [(before, after, "config.json of a copy of the draft")]
        if fix.environment:
            setting = "\n".join(f"{name}={value}" for name, value in sorted(fix.environment.items()))
            changes.append(("", setting, "environment of the server"))
        if fix.edits:
            for file in source_change(fix, self._tree).files:
                before, after = (text.decode(errors="replace") for text in (file.before, file.after))
                changes.append((before, after, f"sglang/{file.path}"))
        return "\n".join(side_by_side(*change) for change in changes)

    def question(self, form: FixKind, folder: str) -> str:
        """Return the question to confirm before `apply` writes to `folder`; writes nothing.

        Raises WiringError if another fix is applied, and if `folder` is empty or cannot take the copies.
        """
        fix, goal = self._ready(form), Path(folder).expanduser().absolute()
        if not folder or goal.exists():
            expected = "a new folder"
            raise WiringError("no folder for the copies", code="copy-folder-not-free", where=folder, expected=expected)
        check_destination(self.case.profile.draft, goal)
        paths = [goal / "draft", goal / "sglang"] if fix.edits else [goal]
        listed = "\n".join(f"  {path}" for path in paths)
        copied = f"This writes outside the run folder:\n{listed}\n"
        return f"{copied}Undo removes the copies. The originals do not change. Go on?"

    def apply(self, form: FixKind, folder: str = "") -> None:
        """Write the fixed copy of the draft, and for the source form a patched copy of SGLang.

        They go to the run folder or to `folder`. Raises WiringError if another fix is applied, and as `applied` does.
        """
        fix = self._ready(form)
        goal = Path(folder).expanduser().absolute() if folder else self.case.scratch("panel")
        self._digests = digests(self.case, self.plan.fixes, self._tree)
        made = self._stack.enter_context(applied(self.case, fix, tree=self._tree, folder=goal))
        self._applied = fix, made
        lines = [f"{form}: {', '.join(map(str, made.copies))}"]
        lines.append(f"start the server with {made.start_line}")
        self._set("apply", "done", "\n".join(lines))
        for name in ("prove", "undo"):
            self._set(name, "not yet", "")

    def prove(self) -> bool:
        """Read the copies again and check them against the rules, without a server; return whether all checks pass.

        Raises WiringError if nothing is applied.
        """
        fix, made = self._current()
        _, checks = verify_copy(made.folder, self.plan.version, read_target_config(self.case.profile.target).raw)
        found = [(check.stands, f"{check.what}: {check.text}") for check in checks]
        if made.sglang is not None:
            sites = check_sites(find_tree(made.sglang), fix.edits)
            found += [(site.stands, f"{site.site}: {site.text}") for site in sites]
        lines = [f"{'present' if passed else 'MISSING'}: {text}" for passed, text in found]
        passed = all(passed for passed, _ in found)
        self._set("prove", "done" if passed else "failed", "\n".join([*lines, self._server_command(made)]))
        return passed

    def undo(self) -> None:
        """Remove the copies and check that the user's files are byte for byte the same.

        Raises WiringError if nothing is applied.
        """
        fix, made = self._current()
        self._stack.close()
        self._applied = None
        for step in (self.steps["apply"], self.steps["prove"]):
            self._set(step.name, step.state, f"{fix.form}: undone" if step.text else "")
        same = digests(self.case, self.plan.fixes, self._tree) == self._digests
        lines = [f"removed {path}" for path in made.copies]
        lines.append(f"draft and installed SGLang {'are byte for byte the same' if same else 'DIFFER from before'}")
        self._set("undo", "done" if same else "failed", "\n".join(lines))

    def _planned(self, form: FixKind) -> Fix:
        return self.plan.fix(form)

    def _ready(self, form: FixKind) -> Fix:
        if self._applied is not None:
            where = self._applied[0].form
            raise WiringError("another fix is applied", code="fix-applied", where=where, remedy="Undo it first")
        return self._planned(form)

    def _current(self) -> tuple[Fix, AppliedFix]:
        if self._applied is None:
            raise WiringError("no fix is applied", code="no-fix-applied", where="patch", remedy="Apply a fix first")
        return self._applied

    def _server_command(self, made: AppliedFix) -> str:
        """Return how to prove the fix in a server, with the command that serves these copies."""
        spec = server_spec(self.case.profile, draft=made.draft, env=made.environment, sglang=made.sglang)
        words = [f"{name}={value}" for name, value in sorted(spec.env.items())]
        words += [f"PYTHONPATH={made.sglang}"] if made.sglang is not None else []
        command = shlex.join([*words, *server_command(spec, 30000)])
        return (
            'This checks the files, not the states. With measure = "live" this notebook serves each fix and compares '
            f"slot 0 with the embedding bit for bit. To start the server by hand:\n{command}"
        )

    def _set(self, name: str, state: str, text: str) -> None:
        self.steps = {**self.steps, name: Step(name, state, text)}

"""A cure tried step by step, each step with its state: planned, applied, proved, undone. No widget is in here.

Without a question asked and answered only the run folder is written. What lies outside of it (a folder that the reader
names, the installed SGLang) is written by `apply_outside`, which takes the `Question` that named it.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from wiring.checkpoints.target_files import read_target_config
from wiring.checkpoints.tensor_files import read_json
from wiring.errors import WiringError
from wiring.figures.fragments import side_by_side
from wiring.patch import draft_copy
from wiring.patch.copy_check import verify_copy
from wiring.patch.fix_kinds import Form, with_ids
from wiring.patch.plan import Cure, CurePlan, source_change
from wiring.patch.source import SglangTree, apply, copy_of, status, undo, verify_static
from wiring.patch.source.for_a_while import mark, take_back
from wiring.server.server_spec import server_command
from wiring.workbook.case import Case
from wiring.workbook.live import server_spec

STEPS = ("plan", "apply", "prove", "undo")


@dataclass(frozen=True)
class Step:
    """A step's state: "not yet", "done" or "failed", and what it came to in a sentence or some lines."""

    name: str
    state: str = "not yet"
    text: str = ""


@dataclass(frozen=True)
class Question:
    """What is to be written outside the run folder, in words; `apply_outside` does it and nothing else."""

    form: Form
    folder: Path
    files: tuple[Path, ...]

    def __str__(self) -> str:
        listed = "\n".join(f"  {path}" for path in self.files)
        installed = self.form is Form.SOURCE
        lasts = (
            "Every server that is started from this SGLang while the edit stands serves it. It stands until Undo; "
            "should this kernel end before, the next plan takes it back. (`wiring patch apply` makes one that stays.)"
            if installed
            else "It stands until Undo. The draft itself is not written."
        )
        return f"Outside the run folder this writes\n{listed}\n{lasts}\nGo on?"


@dataclass(frozen=True)
class _Standing:
    """What is applied: the cure, the draft's copy, and the edited SGLang (None: not edited; `scratch`: a copy)."""

    cure: Cure
    draft: draft_copy.PatchedDraft
    tree: SglangTree | None
    scratch: Path | None
    digests: dict[str, str]


class PatchSession:
    """The cures of one plan, one at a time. `steps` by name, in order."""

    def __init__(self, case: Case, plan: CurePlan, tree: SglangTree):
        self.case, self.plan, self._tree = case, plan, tree
        self._standing: _Standing | None = None
        forms = ", ".join(cure.form for cure in plan.cures) or "none"
        self.steps = {name: Step(name) for name in STEPS}
        self._set("plan", "done", f"cures of SGLang {plan.version}, least invasive first: {forms}. {plan.advice}")

    @property
    def forms(self) -> tuple[Form, ...]:
        """The forms that the plan has a cure of."""
        return tuple(cure.form for cure in self.plan.cures)

    @property
    def applied(self) -> bool:
        """Whether a cure stands now."""
        return self._standing is not None

    def cure(self, form: Form) -> Cure:
        """The plan's cure of this form. Raises WiringError where it has none."""
        for cure in self.plan.cures:
            if cure.form == form:
                return cure
        raise WiringError("no cure of this form is planned", where=str(form), found=self.plan.advice)

    def diff(self, form: Form) -> str:
        """The whole change side by side, as HTML; nothing is written."""
        cure = self.cure(form)
        config = read_json(self.case.profile.draft / "config.json", "the draft's config")
        cured = _pretty(with_ids(config, cure.ids))
        parts = [side_by_side(_pretty(config), cured, "config.json of a copy of the draft")]
        if cure.environment:
            setting = "\n".join(f"{name}={value}" for name, value in sorted(cure.environment.items()))
            parts.append(side_by_side("", setting, "environment of the server"))
        if cure.edits:
            for file in source_change(cure, self._tree).files:
                before, after = (text.decode(errors="replace") for text in (file.before, file.after))
                parts.append(side_by_side(before, after, f"sglang/{file.path}"))
        return "\n".join(parts)

    def apply_to_scratch(self, form: Form) -> None:
        """Make the cured copy of the draft in the run folder, for the source form a copy of SGLang too, and edit that.

        Raises WiringError where another cure stands, and as `draft_copy.apply` and `source_change` do.
        """
        cure = self._ready(form)
        before = self._digests()
        copied = draft_copy.apply(
            self.case.profile.draft, cure, self.case.scratch(f"panel-draft-{form}"), self.plan.wanted
        )
        tree = scratch = None
        try:
            if cure.edits:
                scratch = self.case.scratch("panel-sglang")
                shutil.rmtree(scratch, ignore_errors=True)
                tree = copy_of(self._tree, scratch)
                apply(source_change(cure, tree))
        except BaseException:
            draft_copy.undo(copied.folder)
            if scratch is not None:
                shutil.rmtree(scratch, ignore_errors=True)
            raise
        self._stands(_Standing(cure, copied, tree, scratch, before), "in the run folder")

    def question(self, form: Form, folder: str | Path = "") -> Question:
        """What applying outside the run folder would write: the draft's copy in `folder`, SGLang's files themselves.

        Nothing is written. Without `folder` the copy stays in the run folder, which the source form alone allows.
        Raises WiringError where another cure stands, and where `folder` is not free for a copy.
        """
        cure = self._ready(form)
        if not folder and not cure.edits:
            raise WiringError(
                "this form writes a copy of the draft alone",
                where="folder",
                expected="a folder for it",
                remedy="Name one, or apply to the run folder",
            )
        goal = Path(folder).expanduser().absolute() if folder else self.case.scratch(f"panel-draft-{form}")
        draft_copy.check_goal(self.case.profile.draft, goal)
        files = [goal] if folder else []
        files += [self._tree.file(path) for path in sorted({edit.site.path for edit in cure.edits})]
        return Question(cure.form, goal, tuple(files))

    def apply_outside(self, question: Question) -> None:
        """Write what `question` named. Raises WiringError as `apply_to_scratch` does, and where SGLang is patched."""
        cure = self._ready(question.form)
        before = self._digests()
        if cure.edits:
            take_back(self._tree)
            if status(self._tree).record is not None:
                raise WiringError(
                    "this SGLang carries a patch already, and Undo here would take that away",
                    where=self._tree.package,
                    remedy="Take it back first (`wiring patch undo`)",
                )
        copied = draft_copy.apply(self.case.profile.draft, cure, question.folder, self.plan.wanted)
        try:
            if cure.edits:
                apply(source_change(cure, self._tree, mark(f"for the run {self.case.folder}")))
        except BaseException:
            draft_copy.undo(copied.folder)
            raise
        tree = self._tree if cure.edits else None
        self._stands(_Standing(cure, copied, tree, None, before), "outside the run folder, as was asked")

    def prove(self) -> bool:
        """Read again what was written, and judge it by the rules; whether all of it stands. No server is needed.

        Raises WiringError where nothing is applied.
        """
        standing = self._applied()
        config = read_target_config(self.case.profile.target).raw
        _, checks = verify_copy(standing.draft.folder, self.plan.version, config)
        found = [(check.stands, f"{check.what}: {check.text}") for check in checks]
        if standing.tree is not None:
            sites = verify_static(standing.tree, standing.cure.edits)
            found += [(site.stands, f"{site.site}: {site.text}") for site in sites]
        lines = [f"{'stands' if stands else 'MISSING'}: {text}" for stands, text in found]
        sound = all(stands for stands, _ in found)
        self._set("prove", "done" if sound else "failed", "\n".join([*lines, self._by_server(standing)]))
        return sound

    def undo(self) -> None:
        """Take everything back, and see that the reader's files are what they were before, byte for byte.

        Raises WiringError where nothing is applied, and where somebody changed an edited file since.
        """
        standing = self._applied()
        done = [f"removed {standing.draft.folder}"]
        if standing.tree is not None:
            done.append(undo(standing.tree).text)
        draft_copy.undo(standing.draft.folder)
        if standing.scratch is not None:
            shutil.rmtree(standing.scratch, ignore_errors=True)
            done.append(f"removed {standing.scratch}")
        self._standing = None
        for step in (self.steps["apply"], self.steps["prove"]):
            self._set(step.name, step.state, f"{standing.cure.form}: taken back since" if step.text else "")
        same = self._digests() == standing.digests
        done.append(f"draft and SGLang {'are as they were, byte for byte' if same else 'DIFFER from before'}")
        self._set("undo", "done" if same else "failed", "\n".join(done))

    def _ready(self, form: Form) -> Cure:
        if self._standing is not None:
            raise WiringError("another cure stands", where=str(self._standing.cure.form), remedy="Undo it first")
        return self.cure(form)

    def _applied(self) -> _Standing:
        if self._standing is None:
            raise WiringError("nothing is applied", where="patch", remedy="Apply a cure first")
        return self._standing

    def _stands(self, standing: _Standing, where: str) -> None:
        self._standing = standing
        lines = [f"{standing.cure.form}, {where}: {standing.draft.folder}"]
        if standing.tree is not None:
            lines.append(f"SGLang edited in {standing.tree.package}")
        lines += [f"start its server with {name}={value}" for name, value in sorted(standing.draft.environment.items())]
        self._set("apply", "done", "\n".join(lines))
        self._set("prove", "not yet", "")
        self._set("undo", "not yet", "")

    def _by_server(self, standing: _Standing) -> str:
        """How to prove it in a running server, with the command that serves this very copy."""
        path = None if standing.tree is None else standing.tree.package.parent
        spec = server_spec(self.case.profile, draft=standing.draft.folder, env=standing.draft.environment, sglang=path)
        words = [f"{name}={value}" for name, value in sorted(spec.env.items())]
        words += [f"PYTHONPATH={path}"] if standing.scratch is not None else []
        command = shlex.join([*words, *server_command(spec, 30000)])
        return (
            'These are the files, not the states. In a server: measure = "live" in this notebook serves each cure and '
            f"holds slot 0 against the embedding bit for bit. By hand:\n{command}"
        )

    def _digests(self) -> dict[str, str]:
        """SHA-256 of everything of the reader's that any cure of the plan could touch."""
        paths = sorted({edit.site.path for cure in self.plan.cures for edit in cure.edits})
        found = {path: hashlib.sha256(self._tree.file(path).read_bytes()).hexdigest() for path in paths}
        return found | {"config.json": draft_copy.config_digest(self.case.profile.draft)}

    def _set(self, name: str, state: str, text: str) -> None:
        self.steps = {**self.steps, name: Step(name, state, text)}


def _pretty(config: dict) -> str:
    return json.dumps(config, indent=2)

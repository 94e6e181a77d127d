"""The layout that is served: by the engine's rule, or as the cured copy of a draft was made to be served."""

from __future__ import annotations

from dataclasses import replace

from wiring.checkpoints.copy_record import CopyRecord
from wiring.checkpoints.draft_config import recorded_ids
from wiring.engines.resolve import Engine, Note, ServedLayout, served_layout
from wiring.errors import WiringError
from wiring.lint.lint_inputs import DraftView, TargetView
from wiring.lint.server_arguments import ServerView

_BY_FILES = "this copy was made for an SGLang with edited files, which `wiring patch verify` reads"


def what_is_served(
    engine: Engine,
    draft: DraftView,
    target: TargetView | None,
    server: ServerView | None,
    *,
    embedding_plugin: bool = False,
    engine_ids: tuple[int, ...] | None = None,
    copy: CopyRecord | None = None,
) -> tuple[ServedLayout | None, str]:
    """The layout by phase, or why there is none: a target without a rule is a gap, a release without rules an error.

    What a cured copy needs of its server (the plugin's switch, edited files) is taken to be there, and a note of kind 0
    says so.
    """
    if target is None:
        return None, "no target was given"
    if embedding_plugin or copy is None or not _as_made(engine, draft, copy):
        copy = None
    try:
        layout = served_layout(
            engine.name,
            engine.version,
            target.config.raw,
            draft.config,
            cuda_graphs=server.cuda_graphs if server else True,
            tp_size=server.tp_size if server else 1,
            embedding_plugin=embedding_plugin or (copy is not None and copy.form == "plugin"),
            slots=draft.slots,
            engine_ids=engine_ids,
        )
    except WiringError as error:
        if error.where != target.config.architecture:
            raise
        return None, str(error)
    if copy is not None and copy.form == "plugin":
        switches = " ".join(f"{name}={value}" for name, value in copy.environment.items())
        return _assuming(layout, f"this copy was made for a server with {switches}, which files do not tell"), ""
    if copy is not None and copy.form == "source":
        return _assuming(ServedLayout(copy.layout, copy.layout, copy.layout), _BY_FILES), ""
    return layout, ""


def _as_made(engine: Engine, draft: DraftView, copy: CopyRecord) -> bool:
    """Whether the copy is still what it was made: on SGLang, with the ids that were written into it."""
    ids, _ = recorded_ids(draft.config, draft.producer)
    return engine.name == "sglang" and copy.layout is not None and ids == copy.ids


def _assuming(layout: ServedLayout, text: str) -> ServedLayout:
    return replace(layout, notes=(*layout.notes, Note(0, "warning", text)))

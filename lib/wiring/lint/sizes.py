"""Widths and vocabulary of draft and target, from their configs alone."""

from __future__ import annotations

from wiring.lint.findings import LintFinding
from wiring.lint.lint_inputs import View


def widths(view: View) -> list[LintFinding]:
    """The states must be as wide as the target; a draft of another width needs an embedding of its own."""
    draft, target = view.draft, view.target
    assert target is not None, "needs the target's config"
    hidden, wide = draft.layer.get("hidden_size"), target.config.hidden_size
    found = []
    if draft.width is not None and draft.width != wide:
        name = "target_hidden_size" if draft.config.get("target_hidden_size") else "hidden_size"
        found.append(
            LintFinding(
                3,
                "error",
                f"{draft.where}: {name}",
                f"the draft takes states of width {draft.width}, the target's are {wide} wide",
                "Serve the draft with the target that it was trained for",
            )
        )
    elif hidden not in (None, wide) and draft.tensors is not None and "embed_tokens.weight" not in draft.named:
        found.append(
            LintFinding(
                8,
                "error",
                f"{draft.where}: hidden_size",
                f"the draft is {hidden} wide and the target {wide}, so the target's embedding cannot be shared, "
                "and the draft has none of its own",
                "Export the draft with its embedding",
            )
        )
    return found


def vocabulary(view: View) -> list[LintFinding]:
    """Both must number the same tokens."""
    draft, target = view.draft, view.target
    assert target is not None, "needs the target's config"
    size, expected = draft.layer.get("vocab_size"), target.config.vocab_size
    if size is None or size == expected:
        return []
    return [
        LintFinding(
            9,
            "error",
            f"{draft.where}: vocab_size",
            f"the draft's vocabulary is {size} ids, the target's {expected}",
            "Serve the draft with the target that it was trained for",
        )
    ]

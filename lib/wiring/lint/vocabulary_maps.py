"""Check the sizes of the draft's head and of its vocabulary maps d2t and t2d."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wiring.checkpoints.file_findings import Finding
from wiring.checkpoints.vocabulary_map import check_vocabulary_map
from wiring.lint.lint_inputs import View

if TYPE_CHECKING:
    from torch import Tensor


def maps(view: View) -> list[Finding]:
    """Check that the maps hold ascending, distinct offsets within the target's vocabulary, and that they agree.

    With a wrong map nearly every proposal is another token, and the trainer's own accuracy does not show it.
    """
    return _checked(view, t2d=view.draft.named.get("t2d"), severities=("error", "warning"))


def unusable(view: View) -> list[Finding]:
    """Return only the findings with which neither an accuracy can be computed nor a server can work."""
    return _checked(view, t2d=None, severities=("error",))


def _checked(view: View, t2d: Tensor | None, severities: tuple[str, ...]) -> list[Finding]:
    if view.draft.vocabulary is None:
        return []
    rows, vocab = view.draft.vocabulary
    head, d2t, found = view.draft.named.get("lm_head.weight"), view.draft.named.get("d2t"), []
    if head is not None and (head.dim() != 2 or head.shape[0] != rows):
        evidence = f"lm_head has {head.shape[0] if head.dim() else 'no'} rows, draft_vocab_size is {rows}"
        found.append(("lm_head.weight", evidence))
    if d2t is None and rows < vocab and (view.sglang or "t2d" not in view.draft.named):
        also = ", and SGLang reads no t2d" if "t2d" in view.draft.named else ""
        found.append(("d2t", f"{rows} of {vocab} ids, but no d2t{also}: draft ids would be taken for target ids"))
    else:
        checked = check_vocabulary_map(d2t, t2d, rows, vocab)
        found += [(finding.where, finding.evidence) for finding in checked if finding.severity in severities]
    remedy = "Export the map that was trained with, together with its lm_head"
    return [Finding(9, "error", view.draft.tensor_where(name), evidence, remedy) for name, evidence in found]

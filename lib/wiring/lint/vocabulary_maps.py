"""d2t and t2d: target id = draft id + d2t[draft id], and t2d marks the target ids that are reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wiring.checkpoints.file_findings import Finding
from wiring.lint.lint_inputs import View

if TYPE_CHECKING:
    from torch import Tensor

_MANY = 256  # ids from which on a map without two neighbouring target ids is not believed


def maps(view: View) -> list[Finding]:
    """Offsets, ascending, different, within the target's vocabulary, and both maps of one mind.

    A map that is wrong makes nearly every proposal another word, while the trainer's own numbers stay good.
    """
    if view.draft.vocabulary is None:
        return []
    if found := _shapes(view):
        return found
    rows, vocab = view.draft.vocabulary
    d2t, t2d = view.draft.named.get("d2t"), view.draft.named.get("t2d")
    if d2t is not None:
        evidence = _fault(d2t.long(), None if t2d is None else t2d.bool(), rows, vocab)
        return [_error(view, "d2t", evidence)] if evidence else []
    if t2d is not None and int(t2d.sum()) != rows:
        return [_error(view, "t2d", f"t2d marks {int(t2d.sum())} target ids, draft_vocab_size is {rows}")]
    return []


def unusable(view: View) -> list[Finding]:
    """Of what `maps` finds, that alone with which no number can be computed and no server works."""
    if view.draft.vocabulary is None:
        return []
    rows, vocab = view.draft.vocabulary
    d2t, found = view.draft.named.get("d2t"), _shapes(view)
    if found or d2t is None:
        return found
    evidence = _unreachable(d2t.long(), rows, vocab)
    return [_error(view, "d2t", evidence)] if evidence else []


def _shapes(view: View) -> list[Finding]:
    """Sizes of head and maps, and whether the map is there that is needed."""
    assert view.draft.vocabulary is not None
    rows, vocab = view.draft.vocabulary
    d2t, t2d, head = (view.draft.named.get(name) for name in ("d2t", "t2d", "lm_head.weight"))
    found = []
    if head is not None and (head.dim() != 2 or head.shape[0] != rows):
        evidence = f"lm_head has {head.shape[0] if head.dim() else 'no'} rows, draft_vocab_size is {rows}"
        found.append(_error(view, "lm_head.weight", evidence))
    for name, tensor, length in (("d2t", d2t, rows), ("t2d", t2d, vocab)):
        if tensor is not None and tuple(tensor.shape) != (length,):
            found.append(_error(view, name, f"{name} has shape {list(tensor.shape)}, expected [{length}]"))
        elif tensor is not None and not bool((tensor.double() == tensor.double().round()).all()):
            found.append(_error(view, name, f"{name} holds fractions"))
    if not found and d2t is None and rows < vocab and (view.sglang or t2d is None):
        also = ", and SGLang reads no t2d" if t2d is not None else ""
        evidence = f"{rows} of {vocab} ids, but no d2t{also}: draft ids would be taken for target ids"
        found.append(_error(view, "d2t", evidence))
    return found


def _error(view: View, name: str, evidence: str) -> Finding:
    remedy = "Export the map that was trained with, beside its lm_head"
    return Finding(9, "error", view.draft.tensor_where(name), evidence, remedy)


def _unreachable(d2t: Tensor, rows: int, vocab: int) -> str:
    """Ids that do not exist, or that two draft ids share."""
    import torch

    reached = torch.arange(rows) + d2t  # [Vd] target ids
    outside = ((reached < 0) | (reached >= vocab)).nonzero().flatten()
    if len(outside):
        first = int(outside[0])
        hint = "; it ascends strictly, as target ids do and offsets need not" if bool((d2t.diff() > 0).all()) else ""
        return (
            f"{len(outside)} draft ids reach outside the target's 0 to {vocab - 1}, the first "
            f"{first} -> {int(reached[first])}{hint}"
        )
    if len(reached.unique()) < rows:
        return f"{rows} draft ids reach only {len(reached.unique())} different target ids"
    return ""


def _fault(d2t: Tensor, t2d: Tensor | None, rows: int, vocab: int) -> str:
    """What is wrong with a whole map, the most telling first; empty when nothing is."""
    import torch

    ids = torch.arange(rows)
    reached = ids + d2t  # [Vd] target ids
    agree = t2d is None or torch.equal(t2d.nonzero().flatten(), reached)
    if rows < vocab and bool((d2t == 0).all()):
        return f"all offsets are 0: the draft can only say the ids 0 to {rows - 1}, a slice and no choice of words"
    if rows < vocab and bool((d2t == ids).all()):
        return f"d2t is 0, 1, 2, ... {rows - 1}: a placeholder, under which only every other target id is reached"
    if t2d is not None and not agree and _holds_ids(d2t, t2d):
        return "d2t holds target ids, not offsets: t2d marks exactly the ids that it lists"
    if evidence := _unreachable(d2t, rows, vocab):
        return evidence
    if not bool((reached.diff() > 0).all()):
        first = int((reached.diff() <= 0).nonzero()[0])
        return (
            f"the target ids do not ascend: draft ids {first} and {first + 1} stand for {int(reached[first])} and "
            f"{int(reached[first + 1])}, while every trainer writes them in order"
        )
    if not agree:
        assert t2d is not None
        marked = torch.zeros(vocab, dtype=torch.bool)
        marked[reached] = True
        return f"d2t and t2d disagree on {int((marked != t2d).sum())} target ids{_shifted(marked, t2d)}"
    if t2d is None and rows >= _MANY and bool((d2t.diff() > 0).all()):
        return "d2t ascends strictly, so no two target ids are neighbours: it seems to hold target ids, not offsets"
    return ""


def _holds_ids(d2t: Tensor, t2d: Tensor) -> bool:
    within = bool(((d2t >= 0) & (d2t < len(t2d))).all())
    return within and len(d2t.unique()) == int(t2d.sum()) and bool(t2d[d2t].all())


def _shifted(marked: Tensor, t2d: Tensor) -> str:
    for by in (1, -1):
        if bool((marked.roll(by) == t2d).all()):
            return f": t2d is d2t's set moved by {by}"
    return ""

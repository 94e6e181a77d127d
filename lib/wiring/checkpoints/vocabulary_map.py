"""Check d2t and t2d: target id = draft id + d2t[draft id], and t2d marks the target ids that are reached."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from wiring.checkpoints.file_findings import Finding

if TYPE_CHECKING:
    from torch import Tensor

_KIND = "vocabulary map"
_MANY = 256  # a map of this many ids without two neighboring target ids is taken for a map that holds target ids


def check_vocabulary_map(
    d2t: Tensor | None, t2d: Tensor | None, rows: int, vocab: int, where: Callable[[str], str] = str
) -> list[Finding]:
    """Return what is wrong with the maps of `rows` draft ids to `vocab` target ids, the most specific reason only.

    d2t [rows] holds offsets, t2d [vocab] marks target ids; either may be absent. The severity is "error" if a shape or
    a number is wrong, if a draft id has no target id of its own, or if both maps contradict each other; it is "warning"
    for a map that can be applied but that no trainer writes. `where` turns "d2t" or "t2d" into a place.
    """
    found = []
    for name, tensor, length in (("d2t", d2t, rows), ("t2d", t2d, vocab)):
        if tensor is None:
            continue
        if tuple(tensor.shape) != (length,):
            text = f"{name} has shape {list(tensor.shape)}, expected [{length}]"
            found.append(Finding(_KIND, "error", where(name), text))
        elif not bool((tensor.double() == (tensor.bool() if name == "t2d" else tensor.double().round())).all()):
            text = f"{name} holds fractions" if name == "d2t" else "t2d holds other numbers than 0 and 1"
            found.append(Finding(_KIND, "error", where(name), text))
    if found:
        return found
    if d2t is None:
        marked = rows if t2d is None else int(t2d.sum())
        text = f"t2d marks {marked} target ids, draft_vocab_size is {rows}"
        return [Finding(_KIND, "error", where("t2d"), text)] if marked != rows else []
    return _check_offsets(d2t.long(), None if t2d is None else t2d.bool(), vocab, where("d2t"))


def _check_offsets(d2t: Tensor, t2d: Tensor | None, vocab: int, where: str) -> list[Finding]:
    import torch

    rows, ids = len(d2t), torch.arange(len(d2t))
    reached = ids + d2t  # [rows] target ids
    unreachable = _unreachable(reached, d2t, vocab)
    marked = torch.zeros(vocab, dtype=torch.bool)
    marked[reached.clamp(0, vocab - 1)] = True
    differing = 0 if t2d is None else int((marked != t2d).sum())
    text = ""
    if rows < vocab and bool((d2t == 0).all()):
        text = f"all offsets are 0, so the draft can only propose the ids 0 to {rows - 1}"
    elif rows < vocab and bool((d2t == ids).all()):
        text = f"d2t is the placeholder 0, 1, 2, ... {rows - 1}, with which only every other target id is reached"
    elif t2d is not None and differing and _holds_target_ids(d2t, t2d):
        text = "d2t holds target ids, not offsets: t2d marks exactly the ids that it lists"
    elif unreachable:
        text = unreachable
    elif bool((reached.diff() <= 0).any()):
        first = int((reached.diff() <= 0).nonzero()[0])
        text = (
            f"the target ids do not ascend: draft ids {first} and {first + 1} stand for {int(reached[first])} and "
            f"{int(reached[first + 1])}, and every trainer writes them in order"
        )
    elif t2d is not None and differing:
        shift = next((by for by in (1, -1) if bool((marked.roll(by) == t2d).all())), 0)
        moved = f": t2d is the set of d2t moved by {shift}" if shift else ""
        text = f"d2t and t2d disagree on {differing} target ids{moved}"
    elif t2d is None and rows >= _MANY and bool((d2t.diff() > 0).all()):
        text = "d2t ascends strictly, so no two target ids are neighbors: it seems to hold target ids, not offsets"
    severity = "error" if unreachable or differing else "warning"
    return [Finding(_KIND, severity, where, text)] if text else []


def _unreachable(reached: Tensor, d2t: Tensor, vocab: int) -> str:
    """Describe draft ids without a target id of their own; "" if there are none."""
    outside = ((reached < 0) | (reached >= vocab)).nonzero().flatten()
    if len(outside):
        first = int(outside[0])
        hint = "; it ascends strictly, as target ids do and offsets need not" if bool((d2t.diff() > 0).all()) else ""
        return (
            f"{len(outside)} draft ids reach outside the target's 0 to {vocab - 1}, the first "
            f"{first} -> {int(reached[first])}{hint}"
        )
    different = len(reached.unique())
    return f"{len(reached)} draft ids reach only {different} different target ids" if different < len(reached) else ""


def _holds_target_ids(d2t: Tensor, t2d: Tensor) -> bool:
    within = bool(((d2t >= 0) & (d2t < len(t2d))).all())
    return within and len(d2t.unique()) == int(t2d.sum()) and bool(t2d[d2t].all())

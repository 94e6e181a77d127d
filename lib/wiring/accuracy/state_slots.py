"""Choose which slots of a states file feed the draft, and which boundaries they are; ambiguity is an error.

Boundary b is transformers' hidden_states[b] before the final norm.
"""

from __future__ import annotations

from dataclasses import dataclass

from wiring.errors import WiringError
from wiring.layers import Layout


@dataclass(frozen=True)
class SlotChoice:
    """`layout` feeds the draft, out of `stored` (boundaries of the file's slots, in order); `why` names the source."""

    layout: Layout
    stored: Layout
    why: str


def choose_slots(
    *,
    asked: Layout | None,
    draft_slots: int,
    stored: Layout | None,
    stored_slots: int,
    recorded: Layout | None,
    recorded_why: str,
    recorded_is_default: bool,
    where: object,
) -> SlotChoice:
    """Choose the layout.

    asked: `--layout`, or None. stored: the boundaries of the file's `stored_slots` slots where the file or the user
    names them. recorded: the layout that the draft records; with `recorded_is_default` it records none, and this is
    what its trainer captures by default.

    Raises WiringError where the counts cannot fit, a boundary is not stored, or the choice is ambiguous.
    """
    if asked is not None and len(asked) != draft_slots:
        raise WiringError(
            "the layout does not fill the draft's fc",
            code="layout-size",
            where="--layout",
            expected=f"{draft_slots} boundaries",
            found=",".join(map(str, asked)),
        )
    if stored_slots < draft_slots:
        raise WiringError(
            "the file holds fewer states than the draft's fc takes",
            code="too-few-slots",
            where=where,
            expected=f"{draft_slots} or more",
            found=stored_slots,
        )
    if stored is None:
        return _unnamed(asked, draft_slots, stored_slots, recorded, recorded_why, where)
    if asked is not None:
        missing = [b for b in asked if b not in stored]
        if missing:
            raise WiringError(
                f"boundary {missing[0]} is not among the stored states",
                code="boundary-not-stored",
                where=where,
                expected=f"the layout {asked}",
                found=f"stored boundaries {stored}",
            )
        return SlotChoice(asked, stored, "given by --layout")
    if recorded_is_default and stored_slots == draft_slots:
        return SlotChoice(stored, stored, "the draft records no layout; the file holds exactly as many states")
    if recorded is not None and set(recorded) <= set(stored):
        return SlotChoice(recorded, stored, recorded_why)
    slices = dict.fromkeys((stored[:draft_slots], stored[-draft_slots:]))  # the first or the last states of the file
    raise WiringError(
        "it is ambiguous which of the stored states the draft was trained on",
        code="layout-ambiguous",
        where=where,
        expected=f"a layout of {draft_slots} boundaries; the draft records {recorded or 'none'} ({recorded_why})",
        found=f"stored boundaries {stored}",
        remedy="Pass " + " or ".join(f"--layout {','.join(map(str, c))}" for c in slices),
    )


def _unnamed(
    asked: Layout | None,
    draft_slots: int,
    stored_slots: int,
    recorded: Layout | None,
    recorded_why: str,
    where: object,
) -> SlotChoice:
    """Choose where the file does not name its boundaries: only if it holds exactly as many states as `fc` takes."""
    if stored_slots != draft_slots:
        first, last = draft_slots, stored_slots - draft_slots
        raise WiringError(
            f"the file does not name the boundaries of its {stored_slots} slots, and the draft takes {draft_slots}",
            code="stored-boundaries-unnamed",
            where=where,
            remedy=f"Pass --stored with all {stored_slots} boundaries in order, and --layout with the trained ones: "
            f"usually the first {first} ([:{first}]) or the last {first} ([{last}:])",
        )
    if asked is not None:
        return SlotChoice(asked, asked, "given by --layout, in the order of the file's slots")
    if recorded is not None:
        return SlotChoice(recorded, recorded, f"{recorded_why}; the file's slots are taken in their order")
    raise WiringError(
        "neither the file nor the draft names the boundaries of the states",
        code="layout-unknown",
        where=where,
        expected=f"{draft_slots} boundaries",
        remedy="Pass --layout with the boundaries that the draft was trained on, slot by slot",
    )

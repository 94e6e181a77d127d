"""Which slots of a states file feed the draft, and which boundaries they are. A doubt is an error with its choices."""

from __future__ import annotations

from dataclasses import dataclass

from wiring.errors import WiringError
from wiring.layers import Layout


@dataclass(frozen=True)
class SlotChoice:
    """`layout` feeds the draft, out of `stored` (what the file's slots hold, in order); `why` says how it is known."""

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
    """Decide the layout.

    asked: `--layout`, or None. stored: the boundaries of the file's `stored_slots` slots where the file, or the user,
    says them. recorded: the layout that the draft itself records; with `recorded_is_default` it records none and
    this is what its trainer captures by default.

    Raises WiringError where the counts cannot fit, a boundary is not stored, or the choice is not certain.
    """
    if asked is not None and len(asked) != draft_slots:
        raise WiringError(
            "the layout does not fill the draft's fc",
            where="--layout",
            expected=f"{draft_slots} boundaries",
            found=",".join(map(str, asked)),
        )
    if stored_slots < draft_slots:
        raise WiringError(
            "the file holds fewer states than the draft's fc takes",
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
                where=where,
                expected=f"the layout {asked}",
                found=f"stored boundaries {stored}",
            )
        return SlotChoice(asked, stored, "as asked")
    if recorded is not None and not recorded_is_default and set(recorded) <= set(stored):
        return SlotChoice(recorded, stored, recorded_why)
    if recorded_is_default and stored_slots == draft_slots:
        return SlotChoice(stored, stored, "the draft records no layout; the file holds just as many states as it takes")
    if recorded_is_default and recorded is not None and set(recorded) <= set(stored):
        return SlotChoice(recorded, stored, recorded_why)
    choices = " or ".join(f"--layout {','.join(map(str, c))}" for c in _readings(stored, draft_slots))
    known = f"the draft records {recorded or 'none'} ({recorded_why})"
    raise WiringError(
        "it is not certain which of the stored states the draft was trained on",
        where=where,
        expected=f"a layout of {draft_slots} boundaries; {known}",
        found=f"stored boundaries {stored}",
        remedy=f"Say which: {choices}",
    )


def _unnamed(
    asked: Layout | None,
    draft_slots: int,
    stored_slots: int,
    recorded: Layout | None,
    recorded_why: str,
    where: object,
) -> SlotChoice:
    """The file does not say what its slots hold: certain only where it holds exactly what the draft takes."""
    if stored_slots == draft_slots:
        if asked is not None:
            return SlotChoice(asked, asked, "as asked, taken as the order of the file's slots")
        if recorded is not None:
            return SlotChoice(recorded, recorded, f"{recorded_why}; the file's slots are taken in their order")
        raise WiringError(
            "neither the file nor the draft says which boundaries the states are",
            where=where,
            expected=f"{draft_slots} boundaries",
            remedy="Say --layout with the boundaries that the draft was trained on, slot by slot",
        )
    first, last = draft_slots, stored_slots - draft_slots
    raise WiringError(
        f"the file does not say what its {stored_slots} slots hold, and the draft takes {draft_slots}",
        where=where,
        remedy=f"Say --stored with all {stored_slots} boundaries in order, and --layout with the trained ones: "
        f"usually the first {first} ([:{first}]) or the last {first} ([{last}:])",
    )


def _readings(stored: Layout, slots: int) -> list[Layout]:
    """The usual slices of a wider file: without its last states, without its first."""
    return list(dict.fromkeys((stored[:slots], stored[-slots:])))

"""Choice of the slots that feed the draft: decided where it is certain, otherwise an error with the options."""

import pytest

from wiring.accuracy.state_slots import choose_slots
from wiring.errors import WiringError

WIDE = (0, 3, 31, 59)


def choose(**changes):
    known = dict(
        asked=None,
        draft_slots=3,
        stored=None,
        stored_slots=3,
        recorded=(2, 30, 58),
        recorded_why="nested ids",
        recorded_is_default=False,
        where="states",
    )
    return choose_slots(**(known | changes))


@pytest.mark.parametrize(
    ("case", "layout", "stored"),
    [
        ({"stored": WIDE, "stored_slots": 4, "asked": (0, 3, 31)}, (0, 3, 31), WIDE),
        ({"stored": WIDE, "stored_slots": 4, "asked": (59, 0, 3)}, (59, 0, 3), WIDE),
        ({"stored": WIDE, "stored_slots": 4, "recorded": (3, 31, 59)}, (3, 31, 59), WIDE),
        ({"stored": (3, 31, 59), "recorded": (2, 30, 58), "recorded_is_default": True}, (3, 31, 59), (3, 31, 59)),
        ({"stored": (2, 30, 58, 61), "stored_slots": 4, "recorded_is_default": True}, (2, 30, 58), (2, 30, 58, 61)),
        ({}, (2, 30, 58), (2, 30, 58)),
        ({"asked": (0, 3, 31)}, (0, 3, 31), (0, 3, 31)),
        ({"asked": (0, 3, 31), "recorded": None}, (0, 3, 31), (0, 3, 31)),
    ],
)
def test_certain_choices(case, layout, stored):
    choice = choose(**case)
    assert (choice.layout, choice.stored) == (layout, stored)
    assert choice.why


@pytest.mark.parametrize(
    ("case", "code", "remedy"),
    [
        ({"stored": WIDE, "stored_slots": 4}, "layout-ambiguous", ("--layout 0,3,31", "--layout 3,31,59")),
        ({"stored": (3, 31, 59)}, "layout-ambiguous", ("--layout 3,31,59",)),
        ({"stored": WIDE, "stored_slots": 4, "recorded": None}, "layout-ambiguous", ("--layout 0,3,31",)),
        ({"stored": WIDE, "stored_slots": 4, "asked": (0, 3, 30)}, "boundary-not-stored", ()),
        ({"stored_slots": 4}, "stored-boundaries-unnamed", ("--stored", "[:3]", "[1:]")),
        ({"stored_slots": 4, "asked": (0, 3, 31)}, "stored-boundaries-unnamed", ("--layout",)),
        ({"stored_slots": 2}, "too-few-slots", ()),
        ({"asked": (0, 3)}, "layout-size", ()),
        ({"recorded": None}, "layout-unknown", ("--layout",)),
    ],
)
def test_ambiguous_choices_are_errors_that_list_the_options(case, code, remedy):
    with pytest.raises(WiringError) as error:
        choose(**case)
    assert error.value.code == code
    assert all(option in error.value.remedy for option in remedy)

"""Which slots feed the draft: certain cases are decided, doubtful ones list their choices."""

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
    ("case", "message"),
    [
        ({"stored": WIDE, "stored_slots": 4}, r"not certain.*--layout 0,3,31 or --layout 3,31,59"),
        ({"stored": (3, 31, 59)}, r"not certain.*the draft records \(2, 30, 58\).*--layout 3,31,59"),
        ({"stored": WIDE, "stored_slots": 4, "recorded": None}, r"the draft records none \(nested ids\).*Say which"),
        ({"stored": WIDE, "stored_slots": 4, "asked": (0, 3, 30)}, "boundary 30 is not among the stored states"),
        ({"stored_slots": 4}, r"does not say what its 4 slots hold.*--stored.*\[:3\].*\[1:\]"),
        ({"stored_slots": 4, "asked": (0, 3, 31)}, "does not say what its 4 slots hold"),
        ({"stored_slots": 2}, "fewer states than the draft's fc takes.*expected 3 or more, found 2"),
        ({"asked": (0, 3)}, "does not fill the draft's fc.*expected 3 boundaries, found 0,3"),
        ({"recorded": None}, "neither the file nor the draft says"),
    ],
)
def test_doubts_are_errors_that_say_what_to_do(case, message):
    with pytest.raises(WiringError, match=message):
        choose(**case)

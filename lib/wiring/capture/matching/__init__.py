"""Which boundary does each served slot hold? Compared with every boundary of a reference on the same tokens.

`compare_slots` tries every boundary, shift of the tokens and transform; `match_slots` the boundaries alone;
`diff_layouts` says what the slots' verdicts mean against the trained layout.
"""

from wiring.capture.matching.candidate_scan import Norm
from wiring.capture.matching.layout_difference import LayoutDifference, SlotDifference, diff_layouts
from wiring.capture.matching.match_result import (
    BETWEEN,
    DRIFT,
    EMBEDDING_SCALED,
    EQUALS,
    NORMED,
    RAW,
    RMS_SCALED,
    TRANSFORMS,
    UNDECIDED,
    Comparison,
    Grid,
    SlotMatch,
    matched_layout,
)
from wiring.capture.matching.row_alignment import Rows
from wiring.capture.matching.slot_compare import SHIFTS, compare_slots, match_slots
from wiring.capture.matching.slot_verdict import MAX_ERROR, MIN_MARGIN

__all__ = [
    "BETWEEN",
    "DRIFT",
    "EMBEDDING_SCALED",
    "EQUALS",
    "MAX_ERROR",
    "MIN_MARGIN",
    "NORMED",
    "RAW",
    "RMS_SCALED",
    "SHIFTS",
    "TRANSFORMS",
    "UNDECIDED",
    "Comparison",
    "Grid",
    "LayoutDifference",
    "Norm",
    "Rows",
    "SlotDifference",
    "SlotMatch",
    "compare_slots",
    "diff_layouts",
    "match_slots",
    "matched_layout",
]

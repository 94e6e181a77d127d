"""Find the boundary in each served slot by comparison with every boundary of a reference on the same tokens.

`compare_slots` compares every boundary, token shift and transform; `match_slots` the unchanged boundaries;
`diff_layouts` names how the slots differ from the trained layout.
"""

from wiring.capture.matching.candidate_scan import Norm, TextRows
from wiring.capture.matching.layout_difference import LayoutDifference, diff_layouts
from wiring.capture.matching.match_result import (
    NORMED,
    RAW,
    PhaseComparison,
    SlotComparison,
    SlotMatch,
    matched_layout,
)
from wiring.capture.matching.slot_compare import compare_slots, match_slots

__all__ = [
    "NORMED",
    "RAW",
    "PhaseComparison",
    "LayoutDifference",
    "Norm",
    "TextRows",
    "SlotComparison",
    "SlotMatch",
    "compare_slots",
    "diff_layouts",
    "match_slots",
    "matched_layout",
]

"""Which layout was this `fc` trained on? Told from the draft's own weights; the ids that it records are not looked at.

Layouts are ranked by the cross-entropy of the draft's first step against the target's own choices, on the same rows,
and compared in pairs, document by document.
"""

from wiring.layout_search.data import Material, from_samples, from_texts
from wiring.layout_search.load import open_search
from wiring.layout_search.null_controls import Control
from wiring.layout_search.ranking import Ranked, SearchResult, search
from wiring.layout_search.successive_halving import Level

__all__ = [
    "Control",
    "Level",
    "Material",
    "Ranked",
    "SearchResult",
    "from_samples",
    "from_texts",
    "open_search",
    "search",
]

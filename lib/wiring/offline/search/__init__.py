"""Which layout was this `fc` trained on? Told from the draft's own weights; the ids that it records are not looked at.

Layouts are ranked by the cross-entropy of the draft's first step against the target's own choices, on the same rows,
and compared in pairs, document by document.
"""

from wiring.offline.search.fitting import Control
from wiring.offline.search.halving import Level
from wiring.offline.search.material import Material, from_samples, from_texts
from wiring.offline.search.opening import open_search
from wiring.offline.search.ranking import Ranked, SearchResult, search

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

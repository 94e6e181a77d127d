"""Find the layout that a draft's `fc` was trained on from its weights, ignoring the ids that it records.

Layouts are ranked by the cross-entropy of the draft's first step against the target's choices, with paired differences
over documents.
"""

from wiring.layout_search.data import SearchData, from_samples, from_texts
from wiring.layout_search.load import open_search
from wiring.layout_search.ranking import RankedLayout, SearchResult, search

__all__ = ["RankedLayout", "SearchData", "SearchResult", "from_samples", "from_texts", "open_search", "search"]

"""The source fix: edits of SGLang's model and graph code that serve a draft's id -1 as the embedding in every phase."""

from wiring.patch.source.edit_site import Edit, EditResult, Refusal, Site
from wiring.patch.source.needed_edits import Rewritten, needed_edits, rewrite
from wiring.patch.source.sglang_tree import SglangTree, find_tree
from wiring.patch.source.source_change import GRAPH_SITES, Change, SiteCheck, check_sites, prepare

__all__ = [
    "GRAPH_SITES",
    "Change",
    "Edit",
    "EditResult",
    "Refusal",
    "Rewritten",
    "SglangTree",
    "Site",
    "SiteCheck",
    "check_sites",
    "find_tree",
    "needed_edits",
    "prepare",
    "rewrite",
]

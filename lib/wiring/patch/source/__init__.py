"""The source form of the cure: edits of SGLang's own files that serve a draft's id -1 as the embedding in every phase.

tree = find_tree(path)                    # the package sglang on disk; nothing of it is imported
change = prepare(tree, "DeepseekV3ForCausalLM")
print(change.diff())
apply(change); verify_static(tree, change.edits); undo(tree)
"""

from wiring.patch.source.edit_site import Edit, EditResult, Refusal, Site
from wiring.patch.source.needed_edits import needed_edits, rewrite
from wiring.patch.source.scratch import copy_of
from wiring.patch.source.sglang_tree import SglangTree, find_tree
from wiring.patch.source.source_change import (
    GRAPH_SITES,
    Change,
    Outcome,
    Standing,
    Status,
    apply,
    prepare,
    recover,
    status,
    undo,
)
from wiring.patch.source.static_check import SiteCheck, verify_static

__all__ = [
    "GRAPH_SITES",
    "Change",
    "Edit",
    "EditResult",
    "Outcome",
    "Refusal",
    "SglangTree",
    "Site",
    "SiteCheck",
    "Standing",
    "Status",
    "apply",
    "copy_of",
    "find_tree",
    "needed_edits",
    "prepare",
    "recover",
    "rewrite",
    "status",
    "undo",
    "verify_static",
]

"""vLLM's rule: ids are boundaries on every model; which key of the draft's config is read depends on the release.

Read from the published wheels of 0.8.4 to 0.33.0 (`vllm/v1/worker/gpu_model_runner.py`,
`_get_eagle3_aux_layers_from_config`, and the loops of `model_executor/models/llama.py` and `deepseek_v2.py`) and vLLM
pull requests 16937, 25961 and 42764.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from packaging.version import Version

from wiring.engines.engine_inputs import IDS, ServeRequest, misplaced_layer_ids
from wiring.engines.served_layout import Note, ServedLayout, sorted_states
from wiring.engines.versions import in_force, parse_version
from wiring.errors import WiringError

NEWEST = "0.33.0"  # the newest release that was read


@dataclass(frozen=True)
class KeyRule:
    """From release `since` on: whether ids are read at the top level, and whether nested in `eagle_config`."""

    since: str
    top_level: bool = False
    nested: bool = False


KEYS = (KeyRule("0.8.5"), KeyRule("0.11.1", top_level=True), KeyRule("0.22.0", top_level=True, nested=True))


@dataclass(frozen=True)
class Reach:
    """From release `since` on: whether the loop captures the embedding, and the last layer's output."""

    since: str
    embedding: bool = False
    last: bool = False


LLAMA = (Reach("0.8.5"), Reach("0.18.0", embedding=True, last=True))
DEEPSEEK = (Reach("0.18.0"), Reach("0.25.0", last=True))
_DEEPSEEK_NAMES = frozenset(
    {"DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"}
)


def resolve_served_layout(version: str | None, request: ServeRequest) -> ServedLayout:
    """Return the layout as `wiring.engines.resolve.served_layout` does, for vLLM, the same in all phases.

    There is no list of architectures: one that vLLM cannot serve with EAGLE-3 has the result of Llama, with a note.
    """
    release, target = parse_version(version or NEWEST, "vllm"), request.target
    rule = in_force(KEYS, release)
    if rule is None:
        raise WiringError(
            "this release of vLLM serves no EAGLE-3 draft",
            code="engine-release-without-eagle3",
            where="vllm",
            expected=f"{KEYS[0].since} or newer",
            found=str(release),
            remedy="Name a newer release",
        )
    deepseek = target.architecture in _DEEPSEEK_NAMES
    reach = in_force(DEEPSEEK if deepseek else LLAMA, release)
    if reach is None:
        text = f"{target.architecture} cannot serve an EAGLE-3 draft in vLLM {release}"
        return ServedLayout.in_all_phases(None, Note(1, "error", text, f"It can from {DEEPSEEK[0].since} on"))
    ids, notes = _ids(request.draft_config, rule, release)
    if not deepseek and target.architecture != "LlamaForCausalLM":
        text = f"the loop of {target.architecture} was not read: that of LlamaForCausalLM is assumed"
        notes += (Note(1, "note", text, "Confirm the layout by capture"),)
    if release > Version(NEWEST):
        text = f"vLLM {release} is newer than the newest release read: the rules of {NEWEST} are assumed"
        notes += (Note(1, "warning", text, "Confirm the layout by capture"),)
    layers = target.num_layers
    asked = ids or (2, layers // 2, layers - 3)
    first, last = 0 if reach.embedding else 1, layers - (not reach.last)
    served = sorted_states(asked, layers, request.fc_slots(len(ids or ()), 3), first, last)
    return replace(served, notes=(*notes, *served.notes))


def _ids(config: Mapping[str, Any], rule: KeyRule, release: Version) -> tuple[tuple[int, ...] | None, tuple[Note, ...]]:
    eagle = config.get("eagle_config")
    top, nested = config.get(IDS), eagle.get(IDS) if isinstance(eagle, Mapping) else None
    if top and rule.top_level:
        return tuple(top), (Note(2, "note", f"ids {list(top)} are boundaries"),)
    if nested and rule.nested:
        text = f"ids {list(nested)} nested in eagle_config are boundaries in vLLM {release}"
        remedy = "Ids written as output ids (SpecForge, Model Optimizer) need + 1 here"
        return tuple(nested), (Note(2, "warning" if nested[0] == 1 else "note", text, remedy),)
    found = f"{IDS} is not read from there" if top or nested else f"no {IDS}"
    if not (top or nested) and (misplaced := misplaced_layer_ids(config)):
        found = f"ids {misplaced[1]} are under {misplaced[0]}, which vLLM does not read"
    return None, (Note(1, "warning", f"{found}: vLLM's default layers are served", "Record the ids at the top level"),)

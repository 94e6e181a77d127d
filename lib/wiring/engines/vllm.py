"""vLLM's rule: ids are boundaries as they stand, on every model; which key of the draft's config is read has changed.

Read from the published wheels of 0.8.4 to 0.33.0 (`vllm/v1/worker/gpu_model_runner.py`,
`_get_eagle3_aux_layers_from_config`, and the loops of `model_executor/models/llama.py` and `deepseek_v2.py`) and vLLM
pull requests 16937, 25961 and 42764.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from wiring.engines.misplaced_layer_ids import misplaced_layer_ids
from wiring.engines.served_layout import Note, ServedLayout
from wiring.engines.target_shape import Target
from wiring.engines.versions import in_force, parse_version
from wiring.errors import WiringError

_KEY = "eagle_aux_hidden_state_layer_ids"
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


def serve(
    version: str | None,
    target_config: Mapping[str, Any],
    draft_config: Mapping[str, Any],
    *,
    cuda_graphs: bool = True,
    tp_size: int = 1,
    embedding_plugin: bool = False,
    slots: int | None = None,
    engine_ids: tuple[int, ...] | None = None,
) -> ServedLayout:
    """As `wiring.engines.resolve.served_layout`, for vLLM, where all phases are alike.

    No list of architectures is kept here: one that vLLM cannot serve with EAGLE-3 is answered like Llama, with a note.
    """
    release = parse_version(version or NEWEST, "vllm")
    rule = in_force(KEYS, release)
    if rule is None:
        raise WiringError(
            "this release of vLLM serves no EAGLE-3 draft",
            where="vllm",
            expected=f"{KEYS[0].since} or newer",
            found=str(release),
            remedy="Name a newer release",
        )
    target = Target.from_config(target_config)
    deepseek = target.architecture in _DEEPSEEK_NAMES
    reach = in_force(DEEPSEEK if deepseek else LLAMA, release)
    if reach is None:
        text = f"{target.architecture} cannot serve an EAGLE-3 draft in vLLM {release}"
        return ServedLayout(None, None, None, (Note(1, "error", text, f"It can from {DEEPSEEK[0].since} on"),))
    ids, notes = _ids(draft_config, rule, release)
    if not deepseek and target.architecture != "LlamaForCausalLM":
        text = f"the loop of {target.architecture} was not read: that of LlamaForCausalLM is assumed"
        notes += (Note(1, "note", text, "Confirm the layout by capture"),)
    if release > Version(NEWEST):
        text = f"vLLM {release} is newer than the newest release read: the rules of {NEWEST} are assumed"
        notes += (Note(1, "warning", text, "Confirm the layout by capture"),)
    asked = ids or tuple((2, target.num_layers // 2, target.num_layers - 3))
    first, last = 0 if reach.embedding else 1, target.num_layers - (not reach.last)
    captured = tuple(sorted({b for b in asked if first <= b <= last}))
    wanted = slots or draft_config.get("num_aux_hidden_states") or len(ids or ()) or 3
    if len(captured) != wanted:
        text = f"{len(captured)} states are captured ({list(captured)}), fc takes {wanted}: the server stops"
        note = Note(3, "error", text, "Name as many different layers as fc has slots, each within the target")
        return ServedLayout(None, None, None, (*notes, note))
    if captured != asked:
        text = "states are captured in ascending order whatever the order of the ids"
        notes += (Note(3, "warning", text, "Compare with the order of the slots in training"),)
    return ServedLayout(captured, captured, captured, notes)


def _ids(config: Mapping[str, Any], rule: KeyRule, release: Version) -> tuple[tuple[int, ...] | None, tuple[Note, ...]]:
    eagle = config.get("eagle_config")
    top, nested = config.get(_KEY), eagle.get(_KEY) if isinstance(eagle, Mapping) else None
    if top and rule.top_level:
        return tuple(top), (Note(2, "note", f"ids {list(top)} are boundaries as they stand"),)
    if nested and rule.nested:
        text = f"ids {list(nested)} nested in eagle_config are boundaries as they stand in vLLM {release}"
        remedy = "Ids written as output ids (SpecForge, Model Optimizer) need + 1 here"
        return tuple(nested), (Note(2, "warning" if nested[0] == 1 else "note", text, remedy),)
    found = f"{_KEY} is not read from there" if top or nested else f"no {_KEY}"
    if not (top or nested) and (stray := misplaced_layer_ids(config)):
        found = f"ids {stray[1]} stand under {stray[0]}, which vLLM does not read"
    return None, (Note(1, "warning", f"{found}: vLLM's default layers are served", "Record the ids at the top level"),)

"""What SGLang 0.5.23 does with a draft's layer ids and with the speculation arguments.

Read from sglang 0.5.23 (`srt/models/deepseek_v2.py`, `set_eagle3_layers_to_capture`;
`srt/model_executor/model_runner_components/spec_aux_hidden_state.py`; `srt/arg_groups/speculative_hook.py`).
Another release numbers layers differently, so every rule here names the release it holds for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wiring.boundary import Layout, default_layout
from wiring.errors import WiringError

SUPPORTED = "0.5.23"
EMBEDDING_ID = -1  # the id by which the embedding is asked for where ids are output ids

# Architectures whose ids are boundaries as they stand unless the first id is 1 (then boundary = id + 1).
_CONDITIONAL = frozenset({"DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM"})
# Architectures whose ids are always output ids (boundary = id + 1).
_ALWAYS_ADD_ONE = frozenset({"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})


@dataclass(frozen=True)
class Speculation:
    """The three numbers that shape an EAGLE-3 round.

    `steps` draft steps per round, `topk` branches per step, `draft_tokens` tokens verified per round (the
    already sampled token included, so a chain of `steps` needs steps + 1).
    """

    steps: int
    topk: int
    draft_tokens: int

    def __post_init__(self):
        for name in ("steps", "topk", "draft_tokens"):
            if getattr(self, name) < 1:
                raise WiringError(
                    "speculation needs whole numbers from 1", where=name, expected=">= 1", found=getattr(self, name)
                )


@dataclass(frozen=True)
class ServedLayout:
    """The boundaries that fill the draft's slots in each phase, and what is worth knowing about them.

    `prefill` and `verify` are None for a phase in which the server would fail.
    """

    prefill: Layout | None
    verify: Layout | None
    notes: tuple[str, ...] = ()


def requested_ids(draft_config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The layer ids that SGLang reads from the draft's config, or None (it then takes its default).

    Only the key nested in `eagle_config` counts; a key at the top level is ignored without a message.
    """
    ids = (draft_config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    return tuple(int(i) for i in ids) if ids else None


def served_layout(
    architecture: str, num_layers: int, draft_config: Mapping[str, Any], *, embedding_plugin: bool = False
) -> ServedLayout:
    """The layout that SGLang 0.5.23 serves to this draft on a target of this architecture.

    `embedding_plugin` says that the workbook's plugin is active, under which a config with id -1 is read as
    output ids (boundary = id + 1) on the DeepSeek architectures. Raises WiringError for an architecture
    whose rule is not known here.
    """
    ids, notes = requested_ids(draft_config), []
    if ids is None:
        if "eagle_aux_hidden_state_layer_ids" in draft_config:
            notes.append(
                "eagle_aux_hidden_state_layer_ids stands at the top level and is ignored: nest it in eagle_config"
            )
        notes.append("no layer ids in eagle_config: SGLang's default layers are served")
        layout = default_layout(num_layers)
        return ServedLayout(layout, layout, tuple(notes))
    if architecture in _CONDITIONAL:
        add_one = ids[0] == 1 or (embedding_plugin and EMBEDDING_ID in ids)
        notes.append(f"ids are {'output ids (boundary = id + 1)' if add_one else 'boundaries as they stand'}")
    elif architecture in _ALWAYS_ADD_ONE:
        add_one = True
        notes.append("ids are output ids (boundary = id + 1)")
    else:
        raise WiringError(
            f"no layer-id rule of SGLang {SUPPORTED} is known for this target",
            where=architecture,
            expected=", ".join(sorted(_CONDITIONAL | _ALWAYS_ADD_ONE)),
            found=architecture,
            remedy="Compare captured states instead: the capture needs no rule",
        )
    asked = tuple(i + 1 for i in ids) if add_one else ids
    captured = tuple(sorted({b for b in asked if 0 <= b < num_layers}))
    if captured != asked and len(captured) == len(asked):
        notes.append("states are captured in ascending order whatever the order of the ids")
    if len(captured) < len(asked):
        notes.append(f"only {len(captured)} of {len(asked)} states are captured: the server stops at its first prefill")
        return ServedLayout(None, None, tuple(notes))
    return ServedLayout(captured, captured, tuple(notes))


def config_ids_for(architecture: str, layout: Sequence[int]) -> tuple[int, ...] | None:
    """The ids that make SGLang 0.5.23 serve `layout` as it is, or None where no ids do."""
    if architecture in _ALWAYS_ADD_ONE:
        return tuple(b - 1 for b in layout)
    if architecture not in _CONDITIONAL:
        return None
    if layout[0] != 1:
        return tuple(layout)
    return None  # a first id of 1 would be read as an output id, and boundary 1 has no other spelling


def resolve_speculation(asked: Speculation) -> Speculation:
    """What SGLang makes of the asked numbers: with top-k 1 the draft tokens become steps + 1.

    All releases read (0.4.6 to 0.5.23) do this; the log warns without naming either value.
    """
    if asked.topk == 1 and asked.draft_tokens != asked.steps + 1:
        return Speculation(asked.steps, 1, asked.steps + 1)
    return asked


ACCEPT_RULE = (
    "accept length = 1 + accepted drafts / verify rounds (bonus token included, prefill token not), "
    f"from spec_num_correct_drafts and spec_verify_ct of SGLang {SUPPORTED}"
)

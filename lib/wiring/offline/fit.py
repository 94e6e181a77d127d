"""Does a draft fit a target? Sizes, slots and vocabulary, from config files and tensor shapes alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wiring.errors import WiringError
from wiring.files.draft_config import num_slots
from wiring.files.target import TargetConfig
from wiring.rules.served import served_layout
from wiring.rules.sglang import SUPPORTED, requested_ids

if TYPE_CHECKING:
    from torch import Tensor


def check_fit(
    target: TargetConfig, draft_config: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None
) -> list[str]:
    """Everything that keeps this draft from working on this target, one sentence each; empty when it fits.

    With `tensors` (by checkpoint name) the weights are held against both configs too.
    """
    config = dict(draft_config)
    hidden, vocab = config.get("hidden_size"), config.get("vocab_size")
    width = config.get("target_hidden_size") or hidden
    problems = []
    if hidden != target.hidden_size:
        problems.append(
            f"hidden size: the draft shares the target's embedding of width {target.hidden_size}, "
            f"but its hidden_size is {hidden}"
        )
    if width != hidden and width != target.hidden_size:
        problems.append(
            f"hidden size: target_hidden_size is {width}, the target's states are {target.hidden_size} wide"
        )
    if vocab != target.vocab_size:
        problems.append(f"vocabulary: the draft's vocab_size is {vocab}, the target's {target.vocab_size}")
    problems += _slots(target, config)
    if tensors is not None:
        problems += _weights(target, config, tensors)
    return problems


def _slots(target: TargetConfig, config: dict[str, Any]) -> list[str]:
    ids, problems = requested_ids(config), []
    if ids is not None and len(ids) != num_slots(config):
        problems.append(
            f"slot count: num_aux_hidden_states is {num_slots(config)}, eagle_config asks for {len(ids)} states: {ids}"
        )
    try:
        shape = {"architectures": [target.architecture], "num_hidden_layers": target.num_layers}
        served = served_layout("sglang", SUPPORTED, shape, config)
    except WiringError:
        return problems  # without a rule for the target, nothing is known about what the ids mean
    if served.prefill is None:
        problems.append(f"layer ids {ids} on a target of {target.num_layers} layers: {served.errors[0]}")
    return problems


def _weights(target: TargetConfig, config: dict[str, Any], tensors: Mapping[str, Tensor]) -> list[str]:
    problems = []
    if "fc.weight" in tensors:
        fc_width = tensors["fc.weight"].shape[-1]
        states, rest = divmod(fc_width, target.hidden_size)
        if rest:
            problems.append(
                f"hidden size: fc takes {fc_width} features, not a multiple of the target's {target.hidden_size}"
            )
        elif states != num_slots(config):
            problems.append(f"slot count: fc takes {states} states, the draft's config gives it {num_slots(config)}")
    draft_vocab = config.get("draft_vocab_size") or config.get("vocab_size")
    if "lm_head.weight" in tensors and tensors["lm_head.weight"].shape[0] != draft_vocab:
        problems.append(
            f"vocabulary: lm_head has {tensors['lm_head.weight'].shape[0]} rows, draft_vocab_size is {draft_vocab}"
        )
    if "d2t" in tensors:
        problems += _vocabulary_map(target, draft_vocab, tensors["d2t"])
    elif draft_vocab != config.get("vocab_size"):
        problems.append(
            f"vocabulary: {draft_vocab} of {config.get('vocab_size')} ids, but no d2t maps them to the target's"
        )
    return problems


def _vocabulary_map(target: TargetConfig, draft_vocab: int | None, d2t: Tensor) -> list[str]:
    if d2t.dim() != 1 or len(d2t) != draft_vocab:
        return [f"vocabulary: d2t has shape {list(d2t.shape)}, draft_vocab_size is {draft_vocab}"]
    reached = [i + int(offset) for i, offset in enumerate(d2t.tolist())]
    outside = [(i, r) for i, r in enumerate(reached) if not 0 <= r < target.vocab_size]
    if outside:
        i, r = outside[0]
        return [
            f"vocabulary: d2t maps {len(outside)} draft ids outside the target's 0..{target.vocab_size - 1}, "
            f"the first {i} -> {r}"
        ]
    if len(set(reached)) < len(reached):
        return [f"vocabulary: d2t maps {len(reached)} draft ids to only {len(set(reached))} target ids"]
    return []

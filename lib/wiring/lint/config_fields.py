"""The fields of a config.json that the checks read, and what they must be: a config that breaks this is not checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from wiring.checkpoints.draft_config import IDS
from wiring.errors import WiringError


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(_is_whole(i) for i in value)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


_OBJECT, _NUMBER, _WHOLE = ("an object", _is_object), ("a number", _is_number), ("a whole number", _is_whole)
_FIELDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "architectures": ("a list of names", _are_names),
    "eagle_config": _OBJECT,
    "text_config": _OBJECT,
    "transformer_layer_config": _OBJECT,
    "rope_scaling": _OBJECT,
    "rope_parameters": _OBJECT,
    "quantization_config": _OBJECT,
    "rope_theta": _NUMBER,
    "rms_norm_eps": _NUMBER,
    "max_position_embeddings": _NUMBER,
    "num_aux_hidden_states": _WHOLE,
    "hidden_size": _WHOLE,
    "target_hidden_size": _WHOLE,
    "vocab_size": _WHOLE,
    "draft_vocab_size": _WHOLE,
    "num_hidden_layers": _WHOLE,
    "sliding_window": _WHOLE,
    IDS: ("a list of whole numbers", _are_ids),
}
_NESTED = ("eagle_config", "text_config", "transformer_layer_config", "rope_scaling", "rope_parameters")


def check_fields(config: Mapping[str, Any], where: object) -> None:
    """Raise WiringError where a field that is read holds something else than it may; null is as if it were absent."""
    for name, value in config.items():
        if name not in _FIELDS or value is None:
            continue
        expected, holds = _FIELDS[name]
        if not holds(value):
            raise WiringError(
                f"{name} cannot be read",
                where=where,
                expected=expected,
                found=repr(value)[:60],
                remedy="Correct the config",
            )
        if name in _NESTED:
            check_fields(value, where)

"""The two config.json within an evidence file: what a verdict reads of them is of the type that it should be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

_Test = Callable[[Any], bool]


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _list_of(kind: type) -> _Test:
    return lambda value: isinstance(value, list) and all(type(item) is kind for item in value)


def _table(value: Any) -> bool:
    return isinstance(value, dict)


# what is read, what it must be, and that in words
_FIELDS: Mapping[str, tuple[_Test, str]] = {
    "architectures": (_list_of(str), "a list of names"),
    "eagle_aux_hidden_state_layer_ids": (_list_of(int), "a list of whole numbers"),
    "eagle_config": (_table, "an object"),
    "text_config": (_table, "an object"),
    "llm_config": (_table, "an object"),
    "num_hidden_layers": (_count, "a whole number from 1"),
    "num_aux_hidden_states": (_count, "a whole number from 1"),
    "vocab_size": (_count, "a whole number from 1"),
    "draft_vocab_size": (_count, "a whole number from 1"),
}


def _checked(config: dict[str, Any]) -> dict[str, Any]:
    """The same config; ValueError naming the first field that no rule could read. null is as good as nothing."""
    for name, value in config.items():
        if name not in _FIELDS or value is None:
            continue
        fits, words = _FIELDS[name]
        if not fits(value):
            raise ValueError(f"{name} is {words}, not {value!r:.80}")
        if isinstance(value, dict):
            try:
                _checked(value)
            except ValueError as error:
                raise ValueError(f"{name}.{error}") from None
    return config


Config = Annotated[dict[str, Any], AfterValidator(_checked)]  # a parsed config.json

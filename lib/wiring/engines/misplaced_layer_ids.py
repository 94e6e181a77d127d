"""Layer ids that stand in a draft's config where no engine and no trainer looks for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_KEY = "eagle_aux_hidden_state_layer_ids"
_READ = (_KEY, f"eagle_config.{_KEY}")  # by one engine or another; its rule says by which
_LIKE_IDS = re.compile(r"layer_ids|.*(aux|eagle|capture|target).*layer.*|.*layers?_to_capture")


def misplaced_layer_ids(config: Mapping[str, Any]) -> tuple[str, list[int]] | None:
    """Where the first such list stands, as a dotted name, and its ids; None where there is none.

    For a config without ids at their place: beside those, another list may be anything.
    """
    return next(_lists(config, ""), None)


def _lists(config: Mapping[str, Any], inside: str) -> Iterator[tuple[str, list[int]]]:
    for name, value in config.items():
        where = f"{inside}{name}"
        if isinstance(value, Mapping):
            yield from _lists(value, f"{where}.")
        elif where not in _READ and _LIKE_IDS.fullmatch(name) and _are_ids(value):
            yield where, value


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(i) is int for i in value)

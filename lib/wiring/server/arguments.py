"""Compare the arguments requested from a server with those it resolved, from its /server_info."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from wiring.engines.sglang import Speculation, resolve_speculation
from wiring.errors import WiringError

Value = int | str | None
# Arguments that change speed or results: field of /server_info (and, with dashes, SGLang's flag) -> name.
_NAMES = {
    "speculative_num_steps": "steps",
    "speculative_eagle_topk": "top-k",
    "speculative_num_draft_tokens": "draft tokens",
    "speculative_algorithm": "speculative algorithm",
    "attention_backend": "attention backend",
    "dtype": "dtype",
    "kv_cache_dtype": "KV cache dtype",
    "max_running_requests": "max running requests",
    "chunked_prefill_size": "chunked prefill size",
}
_SPECULATION = tuple(_NAMES)[:3]  # in the order of Speculation's fields
_CHAIN_RULE = "with top-k 1 SGLang verifies one chain, so draft tokens become steps + 1"
_UNKNOWN = "the server resolved another value; its log may give the reason"


@dataclass(frozen=True)
class ArgumentRow:
    """One argument: the requested value (None: not set), the resolved one, and the reason of a difference.

    `overridden` is True only where a value was requested and the server uses another one.
    """

    name: str
    asked: Value
    resolved: Value
    overridden: bool
    reason: str = ""


def asked_vs_resolved(asked: Speculation | None, server_info: Mapping[str, Any]) -> tuple[ArgumentRow, ...]:
    """Return a row for each speculation argument, then for other arguments that change speed or results.

    Args:
        asked: the requested speculation; None reads it from the server's launch command where that is reported (SGLang
            0.5.23 does). The other arguments always come from the launch command.
        server_info: result of `ServerClient.server_info`.

    Raises:
        WiringError: `server_info` has no resolved arguments ("no-resolved-arguments").
    """
    if "speculative_algorithm" not in server_info:
        raise WiringError(
            "the server's information holds no resolved arguments",
            code="no-resolved-arguments",
            where="/server_info",
            expected="speculative_algorithm and others",
            found=", ".join(sorted(server_info)[:5]) or "nothing",
        )
    requested = _requested(server_info)
    if asked is not None:
        requested |= dict(zip(_SPECULATION, astuple(asked), strict=True))
    by_rule = _draft_tokens_of_chain([requested[key] for key in _SPECULATION])
    rows = []
    for key, name in _NAMES.items():
        found, wanted = server_info.get(key), requested[key]
        resolved = found if found is None or isinstance(found, (int, str)) else str(found)
        # "auto" leaves the choice to the server, so any resolved value is as requested.
        overridden = wanted is not None and wanted != "auto" and str(wanted) != str(resolved)
        reason = _CHAIN_RULE if key == _SPECULATION[2] and by_rule == resolved else _UNKNOWN
        rows.append(ArgumentRow(name, wanted, resolved, overridden, reason if overridden else ""))
    return tuple(rows)


def _draft_tokens_of_chain(numbers: list[Value]) -> int | None:
    """Return the draft tokens that SGLang resolves for a requested chain; None for a tree or without speculation."""
    valid = [number for number in numbers if isinstance(number, int) and number > 0]
    if len(valid) < len(numbers) or valid[1] != 1:
        return None
    return resolve_speculation(Speculation(*valid)).draft_tokens


def _requested(server_info: Mapping[str, Any]) -> dict[str, Value]:
    """Return the arguments of the launch command by key; None where one is not set or no command is reported."""
    command = server_info.get("launch_command") or ""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for key in _NAMES:
        parser.add_argument(f"--{key.replace('_', '-')}")
    try:
        words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
        values = vars(parser.parse_known_args(words)[0])
    except (ValueError, argparse.ArgumentError):
        return dict.fromkeys(_NAMES)
    return {key: int(text) if text and text.lstrip("-").isdecimal() else text for key, text in values.items()}

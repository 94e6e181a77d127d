"""What was asked of the server beside what it made of it, from its own /server_info."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wiring.engines.sglang import Speculation, resolve_speculation
from wiring.errors import WiringError

Value = int | str | None
# Speculation's field -> (the argument's name here, the field of /server_info, SGLang's flag).
_SPECULATION = {
    "steps": ("steps", "speculative_num_steps", "--speculative-num-steps"),
    "topk": ("top-k", "speculative_eagle_topk", "--speculative-eagle-topk"),
    "draft_tokens": ("draft tokens", "speculative_num_draft_tokens", "--speculative-num-draft-tokens"),
}
# Further arguments that change speed or results: (name, field of /server_info, flag).
_OTHERS = (
    ("speculative algorithm", "speculative_algorithm", "--speculative-algorithm"),
    ("attention backend", "attention_backend", "--attention-backend"),
    ("dtype", "dtype", "--dtype"),
    ("KV cache dtype", "kv_cache_dtype", "--kv-cache-dtype"),
    ("max running requests", "max_running_requests", "--max-running-requests"),
    ("chunked prefill size", "chunked_prefill_size", "--chunked-prefill-size"),
)
_CHAIN_RULE = "with top-k 1 SGLang verifies one chain: draft tokens become steps + 1, whatever was asked"
_UNKNOWN = "the server resolved it otherwise; its log may say why"


@dataclass(frozen=True)
class ArgumentRow:
    """One argument: what was asked for (None: nothing), what the server runs with, and why they differ.

    `overridden` is True only where something was asked for and the server runs with something else.
    """

    name: str
    asked: Value
    resolved: Value
    overridden: bool
    reason: str = ""


def asked_vs_resolved(asked: Speculation | None, server_info: Mapping[str, Any]) -> tuple[ArgumentRow, ...]:
    """The speculation arguments first, then the others that change speed or results.

    `asked` None takes what the server's own launch command asked for, where it tells (0.5.23 does); a server without
    speculation has None in both columns. The others are always taken from the launch command. `server_info` is
    what `ServerClient.server_info` returns.

    Raises WiringError when `server_info` lacks the resolved arguments: it is not SGLang's.
    """
    if "speculative_algorithm" not in server_info:
        raise WiringError(
            "the server's information holds no resolved arguments",
            where="/server_info",
            expected="speculative_algorithm and others",
            found=", ".join(sorted(server_info)[:5]) or "nothing",
        )
    command = _command(server_info)
    rows = []
    for field, (name, key, flag) in _SPECULATION.items():
        wanted = _flag(command, flag) if asked is None else getattr(asked, field)
        by_rule = _is_chain_rule(asked or _asked_by(command), field, server_info.get(key))
        rows.append(_row(name, wanted, server_info.get(key), _CHAIN_RULE if by_rule else _UNKNOWN))
    rows += [_row(name, _flag(command, flag), server_info.get(key), _UNKNOWN) for name, key, flag in _OTHERS]
    return tuple(rows)


def resolved_speculation(server_info: Mapping[str, Any]) -> Speculation | None:
    """The speculation that the server runs with, or None where it runs without a draft."""
    values = [server_info.get(key) for _, key, _ in _SPECULATION.values()]
    if not server_info.get("speculative_algorithm") or None in values:
        return None
    return Speculation(*(int(value) for value in values))


def _row(name: str, asked: Value, found: Any, reason: str) -> ArgumentRow:
    resolved = found if found is None or isinstance(found, (int, str)) else str(found)
    # "auto" hands the choice to the server: whatever it chooses is what was asked for.
    overridden = asked is not None and asked != "auto" and str(asked) != str(resolved)
    return ArgumentRow(name, asked, resolved, overridden, reason if overridden else "")


def _is_chain_rule(asked: Speculation | None, field: str, resolved: Any) -> bool:
    if asked is None or asked.topk != 1 or field != "draft_tokens":
        return False
    return resolve_speculation(asked).draft_tokens == resolved


def _command(server_info: Mapping[str, Any]) -> list[str]:
    """The words of the launch command; empty where the server does not tell it."""
    told = server_info.get("launch_command") or ""
    if isinstance(told, (list, tuple)):
        return [str(word) for word in told]
    try:
        return shlex.split(str(told))
    except ValueError:
        return []


def _flag(command: list[str], flag: str) -> Value:
    """The last value of `flag` (SGLang's parser takes the last), as a number where it is one."""
    value = None
    for at, word in enumerate(command):
        if word == flag and at + 1 < len(command):
            value = command[at + 1]
        elif word.startswith(f"{flag}="):
            value = word.partition("=")[2]
    return int(value) if value is not None and value.lstrip("-").isdecimal() else value


def _asked_by(command: list[str]) -> Speculation | None:
    numbers = [_flag(command, flag) for _, _, flag in _SPECULATION.values()]
    return Speculation(*numbers) if all(isinstance(number, int) and number > 0 for number in numbers) else None

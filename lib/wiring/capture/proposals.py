"""What the draft of a running server proposed, round by round: the records, their files and their reader.

A server that captures with `capture_environment(folder, drafts=True)` writes one file per round, the drafts of all its
requests as the target will verify them. The target's own token, x_{t+1}, is the root of a round's tree; the states that
the draft was fed for it are those of `read_capture` at positions 0..t, in records of smaller index.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wiring.capture.records import DRAFTS, check_no_error
from wiring.checkpoints.atomic import write_text
from wiring.errors import WiringError

PATTERN = "drafts-*.json"


@dataclass(frozen=True)
class DraftRecord:
    """The drafts of one request in one round, ids of the target.

    The draft went on from row t = `position`: the state g_t beside `root`, the token x_{t+1}. `tokens` are the drafts
    in SGLang's order, by step; `parents[i]` is the index in `tokens` of the draft before tokens[i], -1 for the root.
    A chain (top-k 1) has parents (-1, 0, 1, ...), and tokens[k] is the proposal for x_{t+2+k}. A draft whose parent was
    not taken into the tree has None: SGLang verifies it in vain. `index` counts rounds and states together, in the
    order in which the server process recorded them.
    """

    request: str
    position: int
    root: int
    tokens: tuple[int, ...]
    parents: tuple[int | None, ...]
    index: int


def of_verify_input(requests: Sequence[str], verify: Any, index: int) -> list[DraftRecord]:
    """The records of one round from SGLang's `EagleVerifyInput` (0.5.23, `srt/speculative/eagle_info.py`).

    Per request `draft_token_num` nodes, the root first: `draft_token` and `positions` [requests * nodes],
    `retrieve_next_token` (first child) and `retrieve_next_sibling` [requests, nodes], -1 for none.

    Raises ValueError when there are nodes of other requests than those named.
    """
    nodes = int(verify.draft_token_num)
    tokens, positions, child, sibling = (
        getattr(verify, name).view(-1, nodes).tolist()
        for name in ("draft_token", "positions", "retrieve_next_token", "retrieve_next_sibling")
    )
    if len(tokens) != len(requests):
        raise ValueError(f"drafts for {len(tokens)} requests, {len(requests)} requests in the batch")
    return [
        DraftRecord(
            request=request,
            position=positions[i][0] - 1,
            root=tokens[i][0],
            tokens=tuple(tokens[i][1:]),
            parents=_parents(child[i], sibling[i]),
            index=index,
        )
        for i, request in enumerate(requests)
    ]


def _parents(child: Sequence[int], sibling: Sequence[int]) -> tuple[int | None, ...]:
    """For each node but the root the number of its parent among those nodes, from first children and next siblings."""
    parents: list[int | None] = [None] * len(child)
    for node, first in enumerate(child):
        while first != -1:
            parents[first] = node - 1
            first = sibling[first]
    return tuple(parents[1:])


def write_drafts(folder: Path, records: Sequence[DraftRecord]) -> Path:
    """Write one round's records, which have one index, to a file of their own in `folder`."""
    path = folder / f"drafts-{records[0].index:06d}-{os.getpid()}.json"
    return write_text(path, json.dumps([asdict(record) for record in records]) + "\n")


def read_drafts(folder: str | Path) -> tuple[DraftRecord, ...]:
    """All records of a capture folder in the order of the rounds.

    Raises WiringError when the recorder reported an error, when there are no drafts, or when a file is damaged.
    """
    folder = Path(folder)
    check_no_error(folder)
    files = sorted(folder.glob(PATTERN))
    if not files:
        raise WiringError(
            "no drafts were captured",
            where=folder,
            expected=f"files {PATTERN}",
            remedy=f"Start the server with {DRAFTS}=1 beside the capture folder, then send it a request",
        )
    records = [record for file in files for record in _read(file)]
    return tuple(sorted(records, key=lambda record: record.index))


def _read(file: Path) -> list[DraftRecord]:
    try:
        rounds = json.loads(file.read_text(encoding="utf-8"))
        return [DraftRecord(**(r | {"tokens": tuple(r["tokens"]), "parents": tuple(r["parents"])})) for r in rounds]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WiringError(f"not a record of drafts: {error}", where=file, remedy="Capture again") from None

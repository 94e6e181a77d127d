"""Record what the draft of a running server proposed, round by round.

A server that captures with `capture_environment(folder, drafts=True)` writes one JSON file per round, a list of
`DraftRecord` objects. The states that the draft was fed before a round are in the state records of smaller index.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wiring.checkpoints.atomic import write_text


@dataclass(frozen=True)
class DraftRecord:
    """The drafts of one request in one round, as ids of the target.

    The draft continues row t = `position`, whose next token x_{t+1} is the target's own, `root`. `tokens` are the
    drafts in SGLang's order, by step; `parents[i]` is the index of the parent of tokens[i], -1 for the root.
    A chain (top-k 1) has parents (-1, 0, 1, ...), and tokens[k] is the proposal for x_{t+2+k}. A draft whose parent is
    not part of the tree has None. `index` counts rounds and state records of the server process together.
    """

    request: str
    position: int
    root: int
    tokens: tuple[int, ...]
    parents: tuple[int | None, ...]
    index: int


def records_of_round(requests: Sequence[str], verify: Any, index: int) -> list[DraftRecord]:
    """Return the records of one round from SGLang's `EagleVerifyInput` (0.5.23, `srt/speculative/eagle_info.py`).

    Each request has `draft_token_num` nodes, the root first: `draft_token` and `positions` [requests * nodes],
    `retrieve_next_token` (first child) and `retrieve_next_sibling` [requests, nodes], -1 for none. Raises ValueError if
    the number of requests differs.
    """
    nodes = int(verify.draft_token_num)
    names = ("draft_token", "positions", "retrieve_next_token", "retrieve_next_sibling")
    rows = list(zip(*(getattr(verify, name).view(-1, nodes).tolist() for name in names), strict=True))
    if len(rows) != len(requests):
        raise ValueError(f"drafts for {len(rows)} requests, {len(requests)} requests in the batch")
    return [
        DraftRecord(request, positions[0] - 1, tokens[0], tuple(tokens[1:]), _parents(child, sibling), index)
        for request, (tokens, positions, child, sibling) in zip(requests, rows, strict=True)
    ]


def _parents(child: Sequence[int], sibling: Sequence[int]) -> tuple[int | None, ...]:
    """Return for each node but the root the index of its parent among those nodes."""
    parents: list[int | None] = [None] * len(child)
    for node, first in enumerate(child):
        while first != -1:
            parents[first] = node - 1
            first = sibling[first]
    return tuple(parents[1:])


def write_drafts(folder: Path, records: Sequence[DraftRecord]) -> None:
    """Write the records of one round, which share one index, to a file in `folder`."""
    path = folder / f"drafts-{records[0].index:06d}-{os.getpid()}.json"
    write_text(path, json.dumps([asdict(record) for record in records]) + "\n")

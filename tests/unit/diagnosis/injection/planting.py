"""Plant faults: each plant changes one property of a server, so that faults can be combined."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planted_server import Server
from safetensors.torch import load_file, save_file
from tiny_bench import TINY, Bench
from torch import Tensor


@dataclass(frozen=True)
class Ground:
    """What a plant works on: the bench, and a folder for changed checkpoints."""

    bench: Bench
    folder: Path

    def changed(
        self,
        server: Server,
        config: Mapping[str, Any] | None = None,
        tensors: Callable[[dict[str, Tensor]], dict[str, Tensor]] = lambda t: t,
        ids: tuple[int, ...] | None = None,
    ) -> Server:
        """Return the server with a changed copy of its checkpoint; folder names must not reveal the fault."""
        to = self.folder / f"draft-{len(list(self.folder.iterdir())):03}"
        shutil.copytree(server.draft, to)
        told = json.loads((to / "config.json").read_text()) | dict(config or {})
        if ids is not None:
            told["eagle_config"] = {**told["eagle_config"], "eagle_aux_hidden_state_layer_ids": list(ids)}
        (to / "config.json").write_text(json.dumps(told, indent=1))
        kept = {name: tensor.contiguous() for name, tensor in tensors(load_file(to / "model.safetensors")).items()}
        (to / "model.safetensors").unlink()
        save_file(kept, to / "model.safetensors")
        return replace(server, draft=to)


@dataclass(frozen=True)
class Plant:
    """One fault: its number in `wiring.engines.faults`, its strength, and what is changed."""

    fault: int
    strength: str
    what: str
    apply: Callable[[Ground, Server], Server]


def then(server: Server, **changes: Callable) -> Server:
    """Return the server with functions applied after its own ones."""
    made = {}
    for name, change in changes.items():
        before = getattr(server, name)
        made[name] = lambda moment, x, before=before, change=change: change(moment, before(moment, x))
    return replace(server, **made)


def asked(steps: int, draft_tokens: int | None = None) -> dict[str, int]:
    """Speculation arguments of a chain."""
    return {
        "speculative_num_steps": steps,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": draft_tokens or steps + 1,
    }


def healthy(ground: Ground, **changes: Any) -> Server:
    """The shipped draft with the ids that it was trained on, five steps."""
    server = ground.changed(Server(TINY / "draft", asked=asked(5)), ids=(0, 3, 31))
    return replace(server, **changes)

"""Start a CPU server and send it batches of requests, and requests that are aborted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from wiring.server import launch
from wiring.server.server_spec import ServerSpec

START_TIMEOUT_S = 420  # 15 to 20 s on an idle machine


class CpuServer:
    def __init__(self, url: str, log: Path):
        self.log = log
        self._http = httpx.Client(base_url=url, timeout=180, trust_env=False)

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int, **sampling) -> list[dict]:
        """Send all prompts in one request, so that they run as a batch; return the answers in the same order."""
        response = self._http.post("/generate", json=_body([list(p) for p in prompts], new_tokens, sampling))
        response.raise_for_status()
        return response.json()

    def abort_midway(self, prompt: Sequence[int], new_tokens: int, rid: str, after: int) -> dict:
        """Stream a request, abort it once `after` tokens have come, and return its last event."""
        body = {**_body(list(prompt), new_tokens, {}), "stream": True, "rid": rid}
        event, aborted = {}, False
        with self._http.stream("POST", "/generate", json=body) as response:
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if not aborted and event["meta_info"]["completion_tokens"] >= after:
                    self._http.post("/abort_request", json={"rid": rid}).raise_for_status()
                    aborted = True
        assert aborted, "the request ended before it could be aborted"
        return event

    def flush(self) -> None:
        """Empty the prefix cache; SGLang refuses while a request is running."""
        self._http.post("/flush_cache", params={"timeout": 60}).raise_for_status()

    def metric(self, name: str) -> float:
        """Return the sum of a Prometheus metric over its labels."""
        lines = self._http.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))


def _body(input_ids, new_tokens: int, sampling: dict) -> dict:
    sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True, **sampling}
    return {"input_ids": input_ids, "sampling_params": sampling}


@contextmanager
def serving(spec: ServerSpec, log: Path) -> Iterator[CpuServer]:
    """Start a server and end it with the block. Drafts that preflight advises against are served too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "preflight", lambda spec: ())
        with launch.start(spec, log, timeout_s=START_TIMEOUT_S) as server:
            yield CpuServer(server.url, log)

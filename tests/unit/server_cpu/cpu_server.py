"""A real CPU server for one test module, started through the kit's launcher, and the requests that tests send."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from wiring.server.cpu.launcher import cpu_command, cpu_environment
from wiring.server.ports import free_port
from wiring.server.supervisor import SupervisedProcess, start_supervised

START_TIMEOUT_S = 420  # 15 to 20 s on a quiet machine
# SGLang takes its end for a crash and would otherwise wait 5 s before it looks at its workers.
_NO_DUMPS = {"SGLANG_PYSPY_DUMP_BEFORE_CRASH": "false", "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "false"}


class CpuServer:
    def __init__(self, url: str, log: Path):
        self.url, self.log = url, log
        self._http = httpx.Client(base_url=url, timeout=180, trust_env=False)

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int, **sampling) -> list[dict]:
        """One request with all prompts, so that they run as a batch; the answers in the same order."""
        response = self._http.post("/generate", json=self._body([list(p) for p in prompts], new_tokens, sampling))
        response.raise_for_status()
        return response.json()

    def abort_midway(self, prompt: Sequence[int], new_tokens: int, rid: str, after: int) -> dict:
        """Stream a request, abort it once `after` tokens have come, and return its last event."""
        body = {**self._body(list(prompt), new_tokens, {}), "stream": True, "rid": rid}
        event, aborted = {}, False
        with self._http.stream("POST", "/generate", json=body) as response:
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if not aborted and event["meta_info"]["completion_tokens"] >= after:
                    httpx.post(f"{self.url}/abort_request", json={"rid": rid}, trust_env=False).raise_for_status()
                    aborted = True
        assert aborted, "the request was over before it could be aborted"
        return event

    def flush(self) -> None:
        """Empty the prefix cache; SGLang waits for what it still tidies up, and refuses while a request is running."""
        self._http.post("/flush_cache", params={"timeout": 60}).raise_for_status()

    def metric(self, name: str) -> float:
        """The sum of a Prometheus metric over its labels."""
        lines = self._http.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))

    @staticmethod
    def _body(input_ids, new_tokens: int, sampling: dict) -> dict:
        sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True, **sampling}
        return {"input_ids": input_ids, "sampling_params": sampling}


@contextmanager
def serving(flags: Sequence[str], log: Path, switches: Mapping[str, str] | None = None) -> Iterator[CpuServer]:
    """Start a server with `flags`, wait until it is healthy, and end it afterwards, or with this process.

    `switches` are environment variables beside those of a CPU server.
    """
    port = free_port()
    command = cpu_command(sys.executable, [*flags, "--host", "127.0.0.1", "--port", str(port)])
    environment = cpu_environment({**os.environ, "OMP_NUM_THREADS": "1", **_NO_DUMPS, **(switches or {})})
    process = start_supervised(command, environment, log, grace_s=2.0, scratch=True)
    server = CpuServer(f"http://127.0.0.1:{port}", log)
    try:
        _wait_until_healthy(process, server)
        yield server
    finally:
        process.end()


def _wait_until_healthy(process: SupervisedProcess, server: CpuServer) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.exit_status is not None:
            break
        try:
            if httpx.get(f"{server.url}/health", timeout=5, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.3)
    raise AssertionError(f"the server did not come up:\n{server.log.read_text()[-4000:]}")

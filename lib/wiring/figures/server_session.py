"""State of the server panel: one server at a time, attached or started; its arguments, live rates, prompts, end.

An attached server is read-only until the user allows requests, and it is never stopped.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import asdict, dataclass

import pandas as pd

from wiring.bench.measurement import RATE_RULE
from wiring.engines.sglang import SUPPORTED, Speculation
from wiring.errors import WiringError
from wiring.logs import read_meta_info, read_metrics, read_server_info
from wiring.logs.evidence import AcceptanceRecord, SpeedRecord
from wiring.server.arguments import asked_vs_resolved
from wiring.server.launch import RunningServer, attach
from wiring.server.preflight import installed_sglang
from wiring.workbook.case import Case
from wiring.workbook.live import API_KEY, Progress, read_prompts, server_spec, start_server


@dataclass(frozen=True)
class Reading:
    """One reading: its source, output tokens per second, accept length (bonus token included), counting rule.

    A value is None if the server does not report it (yet).
    """

    what: str
    tok_per_s: float | None
    accept_length: float | None
    rule: str


class ServerSession:
    """At most one server; `readings` are those of this server, oldest first."""

    def __init__(self, case: Case):
        self.case = case
        self.readings: tuple[Reading, ...] = ()
        self.requests_allowed = False
        self._stack = ExitStack()
        self._asked: Speculation | None = None
        self._server: RunningServer | None = None
        self._earlier: str | None = None  # the metrics of the previous reading

    @property
    def running(self) -> bool:
        """Whether there is a server."""
        return self._server is not None

    @property
    def started_here(self) -> bool:
        """Whether this session started the server."""
        return self._server is not None and self._server.pid is not None

    @property
    def state(self) -> str:
        """The state of the session as text."""
        if self._server is None:
            return "no server"
        if self.started_here:
            text = f"started at {self._server.url}, process {self._server.pid}, log {self._server.log}"
        else:
            text = f"attached to {self._server.url}: read only" + (", requests allowed" * self.requests_allowed)
        return "; ".join([text, *self._server.notes])

    def requirements(self) -> str:
        """Return what attaching and starting need on this machine."""
        found = installed_sglang()
        here = f"installed: {found}" if found else "not installed; `make run` installs it"
        device = {"cpu": "the CPU", "cuda": "a GPU"}[self.case.profile.engine.device]
        return (
            "Attach needs the address of a running SGLang server. Start needs SGLang "
            f"{SUPPORTED} in this environment ({here}) and {device} for the profile {self.case.profile.name}."
        )

    def attach(self, url: str, api_key: str = "") -> None:
        """Use the server at `url`; the default API key is SGLANG_API_KEY.

        Raises WiringError as `wiring.server.launch.attach` does, and if there is a server already.
        """
        self._check_free()
        self._use(self._stack.enter_context(attach(url, api_key=api_key or os.environ.get(API_KEY, ""))), asked=None)

    def start(self, draft: bool = True, progress: Progress | None = None) -> None:
        """Start the server of the profile with its draft or without one, and wait until it is ready.

        Raises WiringError as `wiring.server.launch.start` does, and if there is a server already.
        """
        self._check_free()
        spec = server_spec(self.case.profile, draft=self.case.profile.draft if draft else None)
        name = "panel-draft" if draft else "panel-plain"
        self._use(self._stack.enter_context(start_server(self.case, spec, name, progress)), asked=spec.speculation)

    def stop(self) -> None:
        """Stop a server that was started here; close the connection to an attached one."""
        self._server = None
        self._stack.close()

    def arguments(self) -> pd.DataFrame:
        """Return asked and resolved arguments; of an attached server, those of its launch command.

        Raises WiringError without a server.
        """
        rows = asked_vs_resolved(self._asked, self._current().client.server_info())
        return pd.DataFrame([asdict(row) for row in rows])

    def read(self) -> Reading:
        """Read accept length and tok/s from the server's counters since the previous reading; sends no prompt.

        Raises WiringError without a server, and if it does not answer.
        """
        client = self._current().client
        info = client.server_info()
        records = ()
        try:
            text = client.metrics()
            records = read_metrics(text, self._earlier, version=info.get("version"))
            self._earlier = text
        except WiringError:  # started without --enable-metrics
            self._earlier = None
        # /server_info reports the last log interval; it has the rate before the metrics do.
        records = (*records, *read_server_info(info))
        accepted = next((r for r in records if isinstance(r, AcceptanceRecord) and r.accept_length), None)
        speed = next((r for r in records if isinstance(r, SpeedRecord)), None)
        rules = [accepted.rule] if accepted else []
        rules += [f"tok/s: {speed.source.partition(',')[0]}, last log interval"] if speed else []
        rate, length = speed.tok_per_s if speed else None, accepted.accept_length if accepted else None
        rule = "; ".join(rules) or "no value yet: SGLang reports them while it decodes"
        return self._add(Reading("counters of the server", rate, length, rule))

    def send(self) -> Reading:
        """Send the next prompt of the profile and measure its rate at the client.

        Raises WiringError without a server, if requests are not allowed, and if the server refuses.
        """
        server, bench = self._current(), self.case.profile.benchmark
        if not self.started_here and not self.requests_allowed:
            remedy = "Allow requests first"
            raise WiringError("attached server is read-only", code="server-read-only", where=server.url, remedy=remedy)
        prompts = read_prompts(self.case.profile.prompts, bench.prompts)
        number = sum(reading.what.startswith("prompt ") for reading in self.readings) % len(prompts)
        reply = server.client.generate(prompts[number], bench.new_tokens)
        records = read_meta_info([reply.meta], server.client.server_info().get("version"))
        length = records[0].accept_length if records else None
        rule = "; ".join([RATE_RULE, *(record.rule for record in records[:1])])
        what = f"prompt {number + 1} of {len(prompts)}, {len(reply.output_ids)} tokens"
        return self._add(Reading(what, len(reply.output_ids) / reply.latency_s, length, rule))

    def readings_table(self, last: int = 8) -> pd.DataFrame:
        """Return the last readings, newest first."""
        columns = ["reading", "tok/s", "accept length", "rule"]
        rows = [
            (one.what, _rounded(one.tok_per_s, 1), _rounded(one.accept_length, 2), one.rule)
            for one in self.readings[::-1][:last]
        ]
        return pd.DataFrame(rows, columns=columns)

    def _current(self) -> RunningServer:
        if self._server is None:
            remedy = "Attach to a server or start one"
            raise WiringError("there is no server", code="panel-no-server", where="server panel", remedy=remedy)
        return self._server

    def _check_free(self) -> None:
        if self._server is not None:
            problem, remedy = "there is a server already", "Stop it or detach first"
            raise WiringError(problem, code="panel-server-exists", where=self._server.url, remedy=remedy)

    def _use(self, server: RunningServer, asked: Speculation | None) -> None:
        self._server, self._asked, self._earlier, self.readings = server, asked, None, ()

    def _add(self, reading: Reading) -> Reading:
        self.readings = (*self.readings, reading)
        return reading


def _rounded(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"

"""One server at a time, attached to or started: its arguments, its live figures, a prompt sent to it, its end.

A server that somebody else runs is only read, until the reader allows requests, and is never stopped.
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
from wiring.logs.evidence import Acceptance, Speed
from wiring.server.arguments import ArgumentRow, asked_vs_resolved
from wiring.server.launch import RunningServer, attach
from wiring.server.preflight import installed_sglang
from wiring.workbook.case import Case
from wiring.workbook.live import API_KEY, Progress, read_prompts, server_spec, start_server

_NO_FIGURE = "no figure yet: SGLang makes them while it decodes"


@dataclass(frozen=True)
class Reading:
    """One look at the server: where from, output tokens per second, accept length (bonus included), by which rule.

    None where the server gives no such figure (yet).
    """

    what: str
    tok_per_s: float | None
    accept_length: float | None
    rule: str


class ServerSession:
    """At most one server. `state` says in words what there is, `readings` what was read of it, oldest first."""

    def __init__(self, case: Case):
        self.case = case
        self.readings: tuple[Reading, ...] = ()
        self.may_send = False
        self._stack, self._asked = ExitStack(), None
        self._server: RunningServer | None = None
        self._earlier: str | None = None

    @property
    def running(self) -> bool:
        """Whether there is a server."""
        return self._server is not None

    @property
    def ours(self) -> bool:
        """Whether it was started here."""
        return self._server is not None and self._server.pid is not None

    @property
    def state(self) -> str:
        """What there is, in words."""
        if self._server is None:
            return "no server"
        if self._server.pid is None:
            told = f"attached to {self._server.url}: read only" + (", and sent requests to" if self.may_send else "")
        else:
            told = f"started at {self._server.url}, process {self._server.pid}, log {self._server.log}"
        return "; ".join([told, *self._server.notes])

    def needs(self) -> str:
        """What attaching and starting would need here."""
        found = installed_sglang()
        here = f"here is {found}" if found else "here is none (`make run` installs it)"
        device = {"cpu": "the CPU", "cuda": "a GPU"}[self.case.profile.engine.device]
        return (
            "Attach needs the address of a running SGLang server, here or at the end of a tunnel. Start needs SGLang "
            f"{SUPPORTED} in this environment ({here}) and {device} for the profile {self.case.profile.name}."
        )

    def attach(self, url: str, api_key: str = "") -> None:
        """Use the server at `url`; without `api_key` the one in SGLANG_API_KEY.

        Raises WiringError as `wiring.server.launch.attach` does, and beside another one.
        """
        self._free()
        key = api_key or os.environ.get(API_KEY, "")
        self._has(self._stack.enter_context(attach(url, api_key=key)), asked=None)

    def start(self, draft: bool = True, progress: Progress | None = None) -> None:
        """Start the profile's server, with its draft or plain; returns when it is ready.

        Raises WiringError as `wiring.server.launch.start` does, and beside another one.
        """
        self._free()
        spec = server_spec(self.case.profile, draft=self.case.profile.draft if draft else None)
        name = "panel-draft" if draft else "panel-plain"
        self._has(self._stack.enter_context(start_server(self.case, spec, name, progress)), asked=spec.speculation)

    def stop(self) -> None:
        """End the server that was started here, by its own handle; of an attached one only the connection is closed."""
        self._server = None
        self._stack.close()

    def arguments(self) -> pd.DataFrame:
        """Resolved arguments beside the asked ones; of an attached server what its own launch command asked for.

        Raises WiringError without a server.
        """
        return arguments_table(asked_vs_resolved(self._asked, self._now().client.server_info()))

    def read(self) -> Reading:
        """Live accept length and tok/s from the server's own counters, since the reading before; nothing is sent.

        Raises WiringError without a server, and where it does not answer.
        """
        client = self._now().client
        info = client.server_info()
        records = ()
        try:
            text = client.metrics()
            records = read_metrics(text, self._earlier, version=info.get("version"))
            self._earlier = text
        except WiringError:  # started without --enable-metrics
            self._earlier = None
        # The figures of /server_info are those of the last log interval. Its rate stands there before it is a metric.
        records = (*records, *read_server_info(info))
        accepted = next((r for r in records if isinstance(r, Acceptance) and r.accept_length), None)
        speed = next((r for r in records if isinstance(r, Speed)), None)
        rules = [accepted.rule] if accepted else []
        rules += [f"tok/s: {speed.source.partition(',')[0]}, last log interval"] if speed else []
        return self._kept(
            Reading(
                "the server's own figures",
                speed.tok_per_s if speed else None,
                accepted.accept_length if accepted else None,
                "; ".join(rules) or _NO_FIGURE,
            )
        )

    def send(self) -> Reading:
        """Send the profile's next prompt, alone, and measure at the client.

        Raises WiringError without a server, where it may not be sent requests, and where it refuses.
        """
        server, bench = self._now(), self.case.profile.benchmark
        if not self.ours and not self.may_send:
            raise WiringError(
                "this server is somebody's: it is only read", where=server.url, remedy="Allow requests to it first"
            )
        prompts = read_prompts(self.case.profile.prompts, bench.prompts)
        number = sum(reading.what.startswith("prompt ") for reading in self.readings) % len(prompts)
        reply = server.client.generate(prompts[number], bench.new_tokens)
        told = read_meta_info([reply.meta], server.client.server_info().get("version"))
        length = told[0].accept_length if told else None
        rule = RATE_RULE + (f"; {told[0].rule}" if told else "")
        what = f"prompt {number + 1} of {len(prompts)}, {len(reply.output_ids)} tokens"
        return self._kept(Reading(what, len(reply.output_ids) / reply.latency_s, length, rule))

    def _now(self) -> RunningServer:
        if self._server is None:
            raise WiringError("there is no server", where="server panel", remedy="Attach to one or start one")
        return self._server

    def _free(self) -> None:
        if self._server is not None:
            raise WiringError("there is a server already", where=self._server.url, remedy="Stop it or detach first")

    def _has(self, server: RunningServer, asked: Speculation | None) -> None:
        self._server, self._asked, self._earlier, self.readings = server, asked, None, ()

    def _kept(self, reading: Reading) -> Reading:
        self.readings = (*self.readings, reading)
        return reading


def arguments_table(rows: tuple[ArgumentRow, ...]) -> pd.DataFrame:
    """Arguments as a table; what the server changed is marked."""
    return pd.DataFrame([asdict(row) for row in rows])


def readings_table(readings: tuple[Reading, ...], last: int = 8) -> pd.DataFrame:
    """The last readings, newest first."""
    rows = [
        (reading.what, _figure(reading.tok_per_s, 1), _figure(reading.accept_length, 2), reading.rule)
        for reading in readings[::-1][:last]
    ]
    return pd.DataFrame(rows, columns=["reading", "tok/s", "accept length", "rule"])


def _figure(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"

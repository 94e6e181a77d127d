"""The server panel and its session against a small server with answers set by the tests."""

import json
from contextlib import contextmanager

import ipywidgets
import pytest
from panel_parts import by_description, inside
from small_server import INFO, SmallServer, metrics

from wiring.errors import WiringError
from wiring.figures import server_panel, server_session
from wiring.figures.server_session import ServerSession
from wiring.server.client import ServerClient
from wiring.server.launch import RunningServer
from wiring.server.ports import free_port
from wiring.workbook.case import open_case


@pytest.fixture
def server():
    server = SmallServer()
    yield server
    server.close()


@pytest.fixture
def session(tmp_path):
    session = ServerSession(open_case(profile="cpu-tiny", run=str(tmp_path / "run"), measure="recorded"))
    yield session
    session.stop()


@pytest.fixture
def starts(monkeypatch, server):
    """Make `start_server` return the small server; return the list of its starts and ends."""
    log = []

    @contextmanager
    def start_server(case, spec, name, progress=None):
        log.append((f"start {name}", spec.draft))
        progress("starting")
        client = ServerClient(server.url)
        yield RunningServer(server.url, client, pid=4711, log=case.folder / "log")
        client.close()
        log.append((f"end {name}", spec.draft))

    monkeypatch.setattr(server_session, "start_server", start_server)
    return log


def refused(action) -> str:
    with pytest.raises(WiringError) as error:
        action()
    return error.value.code


def test_arguments_of_an_attached_server_come_from_its_launch_command(session, server):
    session.attach(server.url)
    table = session.arguments().set_index("name")
    assert table.loc["draft tokens", ["asked", "resolved", "overridden"]].tolist() == [8, 6, True]
    assert table.loc["draft tokens", "reason"] and "read only" in session.state and not session.started_here


def test_the_api_key_is_that_of_the_panel_or_of_the_environment(session, server, monkeypatch):
    monkeypatch.setenv("SGLANG_API_KEY", "of the environment")
    session.attach(server.url)
    session.stop()
    session.attach(server.url, "my own")
    assert server.keys == {"Bearer of the environment", "Bearer my own"}


def test_a_reading_uses_the_counters_of_the_server_and_sends_nothing(session, server):
    session.attach(server.url)
    reading = session.read()
    assert (reading.tok_per_s, reading.accept_length) == (14.9, 2.86) and "bonus token" in reading.rule
    server.answers["/metrics"] = metrics("0.0")  # in the first seconds of a real server the metric is missing
    assert (session.read().tok_per_s, session.readings[-1].accept_length) == (7.5, 2.86)
    assert "tok/s: /server_info, last log interval" in session.readings[-1].rule
    server.answers["/metrics"] = None  # started without --enable-metrics
    assert session.read().tok_per_s == 7.5
    server.answers["/server_info"] = {**INFO, "internal_states": [{}]}
    reading = session.read()
    assert reading.tok_per_s is reading.accept_length is None
    assert {method for method, _, _ in server.requests} == {"GET"} and len(session.readings) == 4


def test_a_prompt_is_sent_to_an_attached_server_only_if_allowed(session, server):
    session.attach(server.url)
    assert refused(session.send) == "server-read-only"
    assert not [path for _, path, _ in server.requests if path == "/generate"]
    session.requests_allowed = True
    reading = session.send()
    assert reading.accept_length == 1 + 30 / 10 and reading.tok_per_s > 0 and reading.what.startswith("prompt 1 of ")
    assert session.send().what.startswith("prompt 2 of ")
    sent = [body["input_ids"] for _, path, body in server.requests if path == "/generate"]
    prompts = json.loads(session.case.profile.prompts.read_text())
    assert sent == [prompts[0]["input_ids"], prompts[1]["input_ids"]]
    session.stop()
    assert [path for _, path, _ in server.requests if "abort" in path or "flush" in path or "shutdown" in path] == []


def test_a_started_server_is_stopped(session, starts):
    session.start(draft=True, progress=lambda text: None)
    assert session.started_here and "process 4711" in session.state and session.send().accept_length == 4.0
    assert refused(lambda: session.start(draft=False)) == "panel-server-exists"
    session.stop()
    session.start(draft=False, progress=lambda text: None)
    session.stop()
    draft = session.case.profile.draft
    names = [("start panel-draft", draft), ("end panel-draft", draft), ("start panel-plain", None)]
    assert starts == [*names, ("end panel-plain", None)] and session.state == "no server"


def test_without_a_server_every_action_is_an_error(session):
    assert {refused(action) for action in (session.read, session.send, session.arguments)} == {"panel-no-server"}
    with pytest.raises(WiringError):
        session.attach(f"http://127.0.0.1:{free_port()}")
    assert not session.running and "0.5.23" in session.requirements()


def parts(box):
    clock_and_output = (one for one in inside(box) if isinstance(one, (ipywidgets.Play, ipywidgets.Output)))
    found = by_description(box) | {type(one).__name__: one for one in clock_and_output}
    return found, box.children[4], box.children[5]


def shown(found):
    return [one["data"]["text/plain"] for one in found["Output"].outputs]


def test_the_panel_attaches_reads_live_and_detaches(session, server):
    found, error, state = parts(server_panel(session))
    assert "no server" in state.value and found["Read"].disabled and shown(found) == []
    found["URL"].value = server.url
    found["Attach"].click()
    assert server.url in state.value and found["Attach"].disabled and not found["Read"].disabled
    assert "draft tokens" in shown(found)[0] and "2.86" not in shown(found)[1]
    found["Play"].value = 1  # the clock of the browser
    assert "2.86" in shown(found)[1] and "14.9" in shown(found)[1]
    found["Send a prompt"].click()
    assert "read-only" in error.value
    found["may be sent requests, not only read"].value = True
    found["Send a prompt"].click()
    assert error.value == "" and "prompt 1 of " in shown(found)[1]
    assert found["Stop"].description == "Detach"
    found["Stop"].click()
    assert "no server" in state.value and shown(found) == []
    found["Play"].value = 2  # a late tick
    assert error.value == ""
    found["URL"].value = "ftp://somewhere"
    found["Attach"].click()
    assert "ftp://somewhere" in error.value and "no server" in state.value


def test_the_arm_buttons_are_as_wide_as_their_text(session):
    (arm,) = [one for one in inside(server_panel(session)) if isinstance(one, ipywidgets.ToggleButtons)]
    assert arm.style.button_width == "auto"  # the default is 148 pixels


def test_the_panel_starts_one_server_and_stops_it(session, starts):
    found, error, state = parts(server_panel(session))
    found["Start"].click()
    found["Start"].click()  # a second click during the first one runs after it
    assert error.value == "" and "process 4711" in state.value and [name for name, _ in starts] == ["start panel-draft"]
    assert found["Start"].disabled and found["Stop"].description == "Stop"
    found["Stop"].click()
    assert [name for name, _ in starts] == ["start panel-draft", "end panel-draft"] and "no server" in state.value
    assert not found["Start"].disabled


def test_during_a_start_nothing_else_can_be_started_and_an_interrupt_cancels_it(session, monkeypatch):
    found, error, state = parts(server_panel(session))
    disabled = {}

    def start(draft, progress):
        progress("importing, 0 s so far")
        disabled.update({name: found[name].disabled for name in ("Start", "Attach")})
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "start", start)
    found["Start"].click()
    assert disabled == {"Start": True, "Attach": True} and not found["Start"].disabled
    assert "Interrupted" in error.value and "importing" not in error.value and "no server" in state.value

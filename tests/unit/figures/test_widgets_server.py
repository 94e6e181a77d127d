"""The server panel against a small server whose answers the test decides."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import ipywidgets
import pytest
from panel_parts import by_description, inside
from small_server import INFO

from wiring.errors import WiringError
from wiring.figures import server_session as server_bench
from wiring.figures.server_session import ServerSession
from wiring.figures.widgets import server_panel
from wiring.server.client import ServerClient
from wiring.server.launch import RunningServer
from wiring.server.ports import free_port
from wiring.workbook.case import open_case

METRICS = """# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length 2.86
# TYPE sglang:gen_throughput gauge
sglang:gen_throughput 14.9
"""
META = {
    "spec_verify_ct": 10,
    "spec_num_correct_drafts": 30,
    "spec_num_proposed_drafts": 50,
    "completion_tokens": 40,
    "spec_correct_drafts_histogram": [0, 0, 5, 0, 5, 0],
}


@pytest.fixture
def server():
    """Answers paths with what `answers` holds; `seen` are the requests."""
    answers = {
        "/health": "",
        "/server_info": INFO,
        "/metrics": METRICS,
        "/generate": {"output_ids": [4] * 40, "text": "", "meta_info": META},
    }
    seen, keys = [], set()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0].rstrip("/")
            seen.append((self.command, path, json.loads(body) if body else None))
            keys.add(self.headers.get("Authorization"))
            answer = answers.get(path)
            payload = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST = _serve

        def log_message(self, *ignored):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    http.answers, http.seen, http.keys, http.url = answers, seen, keys, f"http://127.0.0.1:{http.server_port}"
    yield http
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture
def bench(tmp_path):
    bench = ServerSession(open_case(profile="cpu-tiny", run=str(tmp_path / "run"), measure="recorded"))
    yield bench
    bench.stop()


@pytest.fixture
def starts(monkeypatch, server):
    """`start_server` gives the small server; the names of what was started, and of what was ended."""
    log = []

    @contextmanager
    def start_server(case, spec, name, progress=None):
        log.append((f"start {name}", spec.draft))
        progress("starting")
        client = ServerClient(server.url)
        yield RunningServer(server.url, client, pid=4711, log=case.folder / "log")
        client.close()
        log.append((f"end {name}", spec.draft))

    monkeypatch.setattr(server_bench, "start_server", start_server)
    return log


def test_of_an_attached_server_its_own_command_tells_what_was_asked(bench, server):
    bench.attach(server.url)
    table = bench.arguments().set_index("name")
    assert table.loc["draft tokens", ["asked", "resolved", "overridden"]].tolist() == [8, 6, True]
    assert "steps + 1" in table.loc["draft tokens", "reason"] and "read only" in bench.state and not bench.ours


def test_a_key_is_the_panels_own_or_the_environments(bench, server, monkeypatch):
    monkeypatch.setenv("SGLANG_API_KEY", "of the environment")
    bench.attach(server.url)
    bench.stop()
    bench.attach(server.url, "my own")
    assert server.keys == {"Bearer of the environment", "Bearer my own"}


def test_live_figures_come_from_the_servers_own_and_nothing_is_sent(bench, server):
    bench.attach(server.url)
    reading = bench.read()
    assert (reading.tok_per_s, reading.accept_length) == (14.9, 2.86) and "bonus token" in reading.rule
    server.answers["/metrics"] = METRICS.replace("14.9", "0.0")  # a real one's first seconds: the metric comes later
    assert (bench.read().tok_per_s, bench.readings[-1].accept_length) == (7.5, 2.86)
    assert "tok/s: /server_info, last log interval" in bench.readings[-1].rule
    server.answers["/metrics"] = None  # started without --enable-metrics
    assert bench.read().tok_per_s == 7.5
    server.answers["/server_info"] = {**INFO, "internal_states": [{}]}
    assert "no figure yet" in bench.read().rule
    assert {command for command, _, _ in server.seen} == {"GET"} and len(bench.readings) == 4


def test_a_prompt_is_sent_to_somebodys_server_only_when_it_may_be(bench, server):
    bench.attach(server.url)
    with pytest.raises(WiringError, match="only read"):
        bench.send()
    assert not [path for _, path, _ in server.seen if path == "/generate"]
    bench.may_send = True
    reading = bench.send()
    assert reading.accept_length == 1 + 30 / 10 and reading.tok_per_s > 0 and reading.what.startswith("prompt 1 of ")
    assert bench.send().what.startswith("prompt 2 of ")
    sent = [body["input_ids"] for _, path, body in server.seen if path == "/generate"]
    prompts = json.loads(bench.case.profile.prompts.read_text())
    assert sent == [prompts[0]["input_ids"], prompts[1]["input_ids"]]
    bench.stop()
    assert [path for _, path, _ in server.seen if "abort" in path or "flush" in path or "shutdown" in path] == []


def test_a_server_that_was_started_is_ended_by_its_own_handle(bench, starts):
    bench.start(draft=True, progress=lambda text: None)
    assert bench.ours and "process 4711" in bench.state and bench.send().accept_length == 4.0
    with pytest.raises(WiringError, match="a server already"):
        bench.start(draft=False)
    bench.stop()
    bench.start(draft=False, progress=lambda text: None)
    bench.stop()
    draft = bench.case.profile.draft
    names = [("start panel-draft", draft), ("end panel-draft", draft), ("start panel-plain", None)]
    assert starts == [*names, ("end panel-plain", None)] and bench.state == "no server"


def test_without_a_server_there_is_a_sentence(bench):
    for action in (bench.read, bench.send, bench.arguments):
        with pytest.raises(WiringError, match="there is no server"):
            action()
    with pytest.raises(WiringError, match="nothing answers"):
        bench.attach(f"http://127.0.0.1:{free_port()}")
    assert not bench.running and "Start needs SGLang 0.5.23" in bench.needs()


def parts(box):
    clock_and_output = (one for one in inside(box) if isinstance(one, (ipywidgets.Play, ipywidgets.Output)))
    found = by_description(box) | {type(one).__name__: one for one in clock_and_output}
    return found, box.children[4], box.children[5]


def shown(found):
    return [one["data"]["text/plain"] for one in found["Output"].outputs]


def test_the_panel_attaches_reads_live_and_detaches(bench, server):
    found, error, state = parts(server_panel(bench))
    assert "no server" in state.value and found["Read"].disabled and shown(found) == []
    found["URL"].value = server.url
    found["Attach"].click()
    assert server.url in state.value and found["Attach"].disabled and not found["Read"].disabled
    assert "draft tokens" in shown(found)[0] and "2.86" not in shown(found)[1]
    found["Play"].value = 1  # the browser's clock
    assert "2.86" in shown(found)[1] and "14.9" in shown(found)[1]
    found["Send a prompt"].click()
    assert "only read" in error.value
    found["may be sent requests, not only read"].value = True
    found["Send a prompt"].click()
    assert error.value == "" and "prompt 1 of " in shown(found)[1]
    assert found["Stop"].description == "Detach"
    found["Stop"].click()
    assert "no server" in state.value and shown(found) == []
    found["Play"].value = 2  # a tick that came late
    assert error.value == ""


def test_a_long_text_on_a_toggle_has_the_width_that_it_needs(bench):
    toggles = [one for one in inside(server_panel(bench)) if isinstance(one, ipywidgets.ToggleButtons)]
    (long,) = [one for one in toggles if any(len(label) > 20 for label, _ in one.options)]
    assert long.style.button_width == "auto"  # else 148 pixels, whatever the text


def test_the_panel_starts_and_stops(bench, starts):
    found, _, state = parts(server_panel(bench))
    found["Start"].click()
    assert "process 4711" in state.value and found["Start"].disabled and found["Stop"].description == "Stop"
    found["Stop"].click()
    assert [name for name, _ in starts] == ["start panel-draft", "end panel-draft"] and "no server" in state.value


def test_a_second_press_of_start_is_none(bench, starts):
    found, error, state = parts(server_panel(bench))
    found["Start"].click()
    found["Start"].click()  # pressed while the first one worked, it comes after it
    assert error.value == "" and "process 4711" in state.value and [name for name, _ in starts] == ["start panel-draft"]
    found["Stop"].click()
    assert not found["Start"].disabled


def test_while_a_server_starts_nothing_else_can_be_started_and_an_interrupt_gives_up(bench, monkeypatch):
    found, error, state = parts(server_panel(bench))
    seen = {}

    def start(draft, progress):
        progress("importing, 0 s so far")
        seen.update({name: found[name].disabled for name in ("Start", "Attach")})
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "start", start)
    found["Start"].click()
    assert seen == {"Start": True, "Attach": True} and not found["Start"].disabled
    assert "Interrupted" in error.value and "importing" not in error.value and "no server" in state.value


def test_the_panel_shows_a_refusal(bench):
    found, error, state = parts(server_panel(bench))
    found["URL"].value = "ftp://somewhere"
    found["Attach"].click()
    assert "not the address of a server" in error.value and "no server" in state.value

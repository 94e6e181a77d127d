"""The client against a small server whose answers the test decides."""

import ast
import json
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace

import pytest

from wiring.bench.benchmark import Arm, measure
from wiring.errors import WiringError
from wiring.server import ports
from wiring.server.client import ServerClient
from wiring.server.launch import attach
from wiring.server.ports import free_port, is_free

INFO = {"model_path": "/t", "version": "0.5.23", "speculative_algorithm": "EAGLE3"}


@pytest.fixture
def server():
    """Answers (method, path) with what `answers` holds: (status, body), or a function that gives them."""
    answers, seen = {("GET", "/health"): (200, "")}, []

    class Handler(BaseHTTPRequestHandler):
        def _serve(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            seen.append((self.command, self.path, json.loads(body) if body else None, dict(self.headers)))
            answer = answers.get((self.command, self.path.partition("?")[0]), (404, {"detail": "Not Found"}))
            status, answer = answer() if callable(answer) else answer
            payload = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            with suppress(BrokenPipeError, ConnectionResetError):  # a client that did not wait
                self.wfile.write(payload)

        do_GET = do_POST = _serve

        def log_message(self, *ignored):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    http.answers, http.seen, http.url = answers, seen, f"http://127.0.0.1:{http.server_port}"
    yield http
    http.shutdown()
    thread.join()
    http.server_close()


def test_generate_sends_what_was_asked_and_returns_what_came(server):
    server.answers["POST", "/generate"] = (200, {"text": "t", "output_ids": [7, 8], "meta_info": {"spec_verify_ct": 1}})
    reply = ServerClient(server.url + "/").generate((1, 2), 2, rid="one", stop=["x"])
    assert (reply.output_ids, reply.meta, reply.text) == ((7, 8), {"spec_verify_ct": 1}, "t")
    _, path, body, _ = server.seen[-1]
    assert path == "/generate"
    assert body == {
        "input_ids": [1, 2],
        "rid": "one",
        "sampling_params": {"max_new_tokens": 2, "ignore_eos": True, "temperature": 0.0, "stop": ["x"]},
    }


def test_a_refusal_carries_the_servers_own_words(server):
    server.answers["POST", "/generate"] = (400, {"error": {"message": "Input is longer than the context length"}})
    with pytest.raises(WiringError, match="refused /generate.*HTTP 400: Input is longer than the context length"):
        ServerClient(server.url).generate([1] * 9, 1)


def test_an_answer_without_tokens_is_not_a_generation(server):
    server.answers["POST", "/generate"] = (200, {"text": "?"})
    with pytest.raises(WiringError, match="no output_ids"):
        ServerClient(server.url).generate([1], 1)


def test_old_releases_answer_under_the_old_path(server):
    server.answers["GET", "/get_server_info"] = (200, INFO)
    assert ServerClient(server.url).server_info() == INFO


def test_flush_and_abort(server):
    server.answers["POST", "/flush_cache"] = server.answers["POST", "/abort_request"] = (200, "")
    client = ServerClient(server.url)
    client.flush_cache(wait_s=3)
    client.abort("one")
    assert server.seen[0][1] == "/flush_cache?timeout=3"
    assert server.seen[1][:3] == ("POST", "/abort_request", {"rid": "one"})


def test_metrics_absent_are_told_with_the_flag_that_brings_them(server):
    with pytest.raises(WiringError, match="--enable-metrics"):
        ServerClient(server.url).metrics()


def test_nothing_answers():
    url = f"http://127.0.0.1:{free_port()}"
    assert ServerClient(url).healthy() is False
    with pytest.raises(WiringError, match="nothing answers"):
        ServerClient(url).server_info()


def test_the_owners_word_on_a_dead_server_is_what_is_raised():
    client = ServerClient(f"http://127.0.0.1:{free_port()}", why_dead=lambda: WiringError("it died of grief"))
    with pytest.raises(WiringError, match="died of grief"):
        client.generate([1], 1)


def test_a_server_that_takes_too_long_is_told_from_one_that_is_not_there(server):
    release = threading.Event()
    server.answers["GET", "/server_info"] = lambda: (release.wait(30), (200, INFO))[1]
    try:
        with pytest.raises(WiringError, match="no answer to /server_info in time.*within 1 s"):
            ServerClient(server.url, timeout=1).server_info()
    finally:
        release.set()


@pytest.mark.parametrize("url", ["127.0.0.1:30000", "ftp://host", "http://", ""])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(WiringError, match="not the address of a server"):
        ServerClient(url)


def test_attach_to_a_server_of_the_known_release(server):
    server.answers["GET", "/server_info"] = (200, INFO)
    with attach(server.url + "/", api_key="secret") as running:
        assert (running.url, running.pid, running.log, running.notes) == (server.url, None, None, ())
    assert server.seen[0][3]["Authorization"] == "Bearer secret"
    assert ServerClient(server.url).healthy()  # leaving the block ended nothing


def test_an_attached_server_keeps_its_prefix_cache_unless_it_is_ours_alone(server):
    server.answers["GET", "/server_info"] = (200, INFO)
    server.answers["POST", "/flush_cache"] = (200, "")
    with attach(server.url) as running, pytest.raises(WiringError, match="read-only: its prefix cache is left alone"):
        running.client.flush_cache()
    assert {method for method, *_ in server.seen} == {"GET"}
    with attach(server.url, read_only=False) as running:
        running.client.flush_cache()
    assert server.seen[-1][1].startswith("/flush_cache")


@pytest.fixture
def tunnel():
    """Passes bytes on to a port of this machine, as `ssh -L` does; `tunnel(port)` is its near end's address."""
    ends = []

    def copy(source, goal):
        with suppress(OSError):
            while data := source.recv(65536):
                goal.sendall(data)
            goal.shutdown(socket.SHUT_WR)

    def serve(listener, port):
        with suppress(OSError):  # closed under us: the test is over
            while True:
                near, far = listener.accept()[0], socket.create_connection(("127.0.0.1", port))
                ends.extend([near, far])
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=copy, args=pair, daemon=True).start()

    def open_(port):
        listener = socket.create_server(("127.0.0.1", 0))
        ends.append(listener)
        threading.Thread(target=serve, args=(listener, port), daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield open_
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


def test_a_server_behind_a_tunnel_is_measured_and_nothing_of_it_is_changed(server, tunnel):
    meta = {"spec_verify_ct": 3, "spec_num_correct_drafts": 4, "spec_correct_drafts_histogram": [1, 2]}
    server.answers["GET", "/server_info"] = (200, INFO)
    server.answers["POST", "/generate"] = lambda: (
        200,
        {"output_ids": [1] * server.seen[-1][2]["sampling_params"]["max_new_tokens"], "meta_info": meta},
    )
    near = tunnel(server.server_port)
    trials = measure(
        [Arm("as served", lambda: attach(near))],
        [[1, 2], [3]],
        new_tokens=4,
        repeats=1,
        warmup_tokens=2,
        interleaved=False,
        progress=lambda text: None,
    )
    assert [(trial.rounds, trial.correct_drafts, len(trial.output_ids)) for trial in trials] == [(3, 4, 4)] * 2
    assert {path.partition("?")[0] for _, path, *_ in server.seen} == {"/server_info", "/health", "/generate"}


def test_attach_notes_another_release(server):
    server.answers["GET", "/server_info"] = (200, INFO | {"version": "0.5.9"})
    (note,) = attach(server.url).notes
    assert "0.5.9" in note and "0.5.23" in note


@pytest.mark.parametrize("answer", [(404, {}), (200, "<html>hello</html>"), (200, {"status": "fine"}), (500, {})])
def test_attach_to_something_else_is_told(server, answer):
    server.answers["GET", "/server_info"] = answer
    with pytest.raises(WiringError, match="not an SGLang server"):
        attach(server.url)


def test_attach_to_an_unhealthy_or_locked_server_is_told(server):
    server.answers["GET", "/server_info"], server.answers["GET", "/health"] = (200, INFO), (503, "")
    with pytest.raises(WiringError, match="not healthy"):
        attach(server.url)
    server.answers["GET", "/server_info"] = (401, {"error": "Unauthorized"})
    with pytest.raises(WiringError, match="API key"):
        attach(server.url)


def test_a_port_in_use_is_not_free(server):
    assert not is_free(server.server_port)
    assert is_free(free_port())


@pytest.fixture
def drawing(monkeypatch):
    """Let `free_port` draw these numbers, on a machine where every port is free."""

    def draw(numbers):
        drawn = iter(numbers)
        monkeypatch.setattr(ports, "_given", set())
        monkeypatch.setattr(ports, "is_free", lambda port: True)
        monkeypatch.setattr(ports.random, "SystemRandom", lambda: SimpleNamespace(randrange=lambda *_: next(drawn)))

    return draw


def test_a_port_is_given_once(drawing):
    """Servers that start side by side do not listen yet when the next one asks."""
    drawing([20_001, 20_001, 20_002])
    assert (free_port(), free_port()) == (20_001, 20_002)


def test_a_machine_without_a_free_port_is_told(drawing):
    drawing(repeat(20_001))
    free_port()
    with pytest.raises(WiringError, match=r"no free port .*10000 to 21999.*`ss -ltn`"):
        free_port()


def test_ports_are_none_that_sglang_or_the_kernel_would_take(monkeypatch):
    """A server draws its workers' port without sparing the one it serves on, and then never listens."""
    network = Path(find_spec("sglang").origin).parent / "srt/utils/network.py"  # read: importing it wants a GPU
    functions = [node for node in ast.walk(ast.parse(network.read_text())) if isinstance(node, ast.FunctionDef)]
    (drawing,) = [each.args for each in functions if each.name == "get_free_port_below_ephemeral"]
    theirs = dict(zip([each.arg for each in drawing.args], map(ast.literal_eval, drawing.defaults), strict=True))
    asked = []

    def end(*bounds):
        asked.append(bounds)
        return bounds[1] - 1

    monkeypatch.setattr(ports, "_given", set())
    monkeypatch.setattr(ports, "is_free", lambda port: True)
    monkeypatch.setattr(ports.random, "SystemRandom", lambda: SimpleNamespace(randrange=end))
    free_port()
    lowest, beyond = asked[0]
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert 1024 <= lowest < beyond <= min(theirs["low"], first_outgoing)

"""The client and `attach` against a small server with answers set by the test; free ports."""

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
from wiring.server.launch import attach, check_attached
from wiring.server.ports import free_port

INFO = {"model_path": "/t", "version": "0.5.23", "speculative_algorithm": "EAGLE3"}


@pytest.fixture
def server():
    """A server that answers (method, path) with an entry of `answers`: (status, body) or a function that returns it."""
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
            with suppress(BrokenPipeError, ConnectionResetError):  # the client did not wait
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


def code_of(call):
    with pytest.raises(WiringError) as error:
        call()
    return error.value.code


def test_generate_sends_the_request_and_returns_the_answer(server):
    server.answers["POST", "/generate"] = (200, {"text": "t", "output_ids": [7, 8], "meta_info": {"spec_verify_ct": 1}})
    reply = ServerClient(server.url + "/").generate((1, 2), 2, rid="one")
    assert (reply.output_ids, reply.meta) == ((7, 8), {"spec_verify_ct": 1})
    assert server.seen[-1][1] == "/generate"
    assert server.seen[-1][2] == {
        "input_ids": [1, 2],
        "rid": "one",
        "sampling_params": {"max_new_tokens": 2, "ignore_eos": True, "temperature": 0.0},
    }


def test_a_refusal_has_the_server_s_own_message(server):
    server.answers["POST", "/generate"] = (400, {"error": {"message": "Input is longer than the context length"}})
    with pytest.raises(WiringError) as error:
        ServerClient(server.url).generate([1] * 9, 1)
    assert (error.value.code, error.value.where) == ("request-refused", server.url)
    assert error.value.found == "HTTP 400: Input is longer than the context length"


def test_an_answer_without_tokens_is_refused(server):
    server.answers["POST", "/generate"] = (200, {"text": "?"})
    assert code_of(lambda: ServerClient(server.url).generate([1], 1)) == "answer-without-tokens"


def test_old_releases_answer_under_the_old_path(server):
    server.answers["GET", "/get_server_info"] = (200, INFO)
    assert ServerClient(server.url).server_info() == INFO


def test_a_server_without_metrics(server):
    with pytest.raises(WiringError) as error:
        ServerClient(server.url).metrics()
    assert error.value.code == "no-metrics" and "--enable-metrics" in error.value.remedy


def test_nothing_answers():
    url = f"http://127.0.0.1:{free_port()}"
    assert ServerClient(url).healthy() is False
    assert code_of(ServerClient(url).server_info) == "server-unreachable"
    died = WiringError("it died", code="server-died")
    client = ServerClient(url, why_dead=lambda: died)
    assert code_of(lambda: client.generate([1], 1)) == "server-died"


def test_a_server_that_takes_too_long_is_distinguished_from_an_absent_one(server):
    release = threading.Event()
    server.answers["GET", "/server_info"] = lambda: (release.wait(30), (200, INFO))[1]
    try:
        with pytest.raises(WiringError) as error:
            ServerClient(server.url, timeout=1).server_info()
        assert (error.value.code, error.value.expected) == ("server-timeout", "within 1 s")
    finally:
        release.set()


@pytest.mark.parametrize("url", ["127.0.0.1:30000", "ftp://host", "http://", ""])
def test_an_invalid_address_is_refused(url):
    assert code_of(lambda: ServerClient(url)) == "not-a-server-address"


def test_attach_uses_the_api_key_and_leaves_the_server_running(server):
    server.answers["GET", "/server_info"] = (200, INFO)
    with attach(server.url + "/", api_key="secret") as running:
        assert (running.url, running.pid, running.log, running.notes) == (server.url, None, None, ())
    assert server.seen[0][3]["Authorization"] == "Bearer secret"
    assert ServerClient(server.url).healthy()


def test_an_attached_server_keeps_its_prefix_cache_unless_it_is_not_read_only(server):
    server.answers["GET", "/server_info"] = (200, INFO)
    server.answers["POST", "/flush_cache"] = (200, "")
    with attach(server.url) as running:
        assert code_of(running.client.flush_cache) == "server-read-only"
    assert {method for method, *_ in server.seen} == {"GET"}
    with attach(server.url, read_only=False) as running:
        running.client.flush_cache()
    assert server.seen[-1][1] == "/flush_cache?timeout=10"


@pytest.fixture
def tunnel():
    """Forward bytes to a port of this machine, as `ssh -L` does; `tunnel(port)` returns the address of the near end."""
    ends = []

    def copy(source, goal):
        with suppress(OSError):
            while data := source.recv(65536):
                goal.sendall(data)
            goal.shutdown(socket.SHUT_WR)

    def serve(listener, port):
        with suppress(OSError):  # closed at the end of the test
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


def test_a_server_behind_a_tunnel_is_measured_without_changing_its_state(server, tunnel):
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


@pytest.mark.parametrize(
    "info, health, code",
    [
        *(
            ((status, body), 200, "not-sglang")
            for status, body in ((404, {}), (200, "<html>"), (200, {"a": 1}), (500, {}))
        ),
        ((401, {"error": "Unauthorized"}), 200, "api-key-refused"),
        ((200, INFO), 503, "server-unhealthy"),
    ],
)
def test_attach_refuses_other_locked_and_unhealthy_servers(server, info, health, code):
    server.answers["GET", "/server_info"], server.answers["GET", "/health"] = info, (health, "")
    assert code_of(lambda: attach(server.url)) == code


def test_the_addresses_of_the_draft_and_of_the_baseline_are_not_mixed_up(server):
    server.answers["GET", "/server_info"] = (200, INFO)
    check_attached(server.url, "mine.yaml, field engine.url", drafts=True)
    assert code_of(lambda: check_attached(server.url, "here", drafts=False)) == "baseline-with-draft"
    server.answers["GET", "/server_info"] = (200, INFO | {"speculative_algorithm": None})
    check_attached(server.url, "mine.yaml, field engine.plain_url", drafts=False)
    assert code_of(lambda: check_attached(server.url, "here", drafts=True)) == "server-without-draft"
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(WiringError) as error:
        check_attached(url, "mine.yaml, field engine.url", drafts=True)
    assert (error.value.code, error.value.where) == ("server-not-usable", f"mine.yaml, field engine.url: {url}")
    assert "nothing answers" in error.value.found and "ssh -N -L" in error.value.remedy


@pytest.fixture
def drawing(monkeypatch):
    """Let `free_port` draw these numbers; returns the bounds that it asks for."""
    bounds = []

    def draw(numbers, free=lambda port: True):
        drawn = iter(numbers)
        random = SimpleNamespace(randrange=lambda *asked: (bounds.append(asked), next(drawn))[1])
        monkeypatch.setattr(ports, "_given", set())
        monkeypatch.setattr(ports, "_is_free", free)
        monkeypatch.setattr(ports.random, "SystemRandom", lambda: random)
        return bounds

    return draw


def test_a_port_is_free_and_given_once(drawing, server):
    """Servers that start at the same time do not listen yet when the next one asks for a port."""
    drawing([server.server_port, 20_001, 20_001, 20_002], ports._is_free)
    assert (free_port(), free_port()) == (20_001, 20_002)


def test_a_machine_without_a_free_port(drawing):
    drawing(repeat(20_001))
    free_port()
    with pytest.raises(WiringError) as error:
        free_port()
    assert error.value.code == "no-free-port" and "10000 to 21999" in error.value.expected


def test_ports_are_clear_of_those_that_sglang_and_the_kernel_draw(drawing):
    """A server draws its workers' port without sparing its own, and then never listens."""
    network = Path(find_spec("sglang").origin).parent / "srt/utils/network.py"  # not imported: that needs a GPU
    functions = [node for node in ast.walk(ast.parse(network.read_text())) if isinstance(node, ast.FunctionDef)]
    (found,) = [each.args for each in functions if each.name == "get_free_port_below_ephemeral"]
    theirs = dict(zip([each.arg for each in found.args], map(ast.literal_eval, found.defaults), strict=True))
    bounds = drawing([20_001])
    free_port()
    ((lowest, beyond),) = bounds
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert 1024 <= lowest < beyond <= min(theirs["low"], first_outgoing)

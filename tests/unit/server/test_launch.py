"""The life of a server from start to end, with programs in place of SGLang; its command and environment."""

import os
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from wiring.engines.sglang import Speculation
from wiring.errors import WiringError
from wiring.server import launch
from wiring.server.launch import start
from wiring.server.server_spec import ServerSpec, server_command, server_environment

PROGRAMS = Path(__file__).parent / "programs"
SPEC = ServerSpec(Path("/models/target"), Path("/models/draft"), Speculation(5, 1, 8))


@pytest.fixture
def stand_in(monkeypatch):
    """Let `start` run this program instead of SGLang, without preflight."""

    def use(*words):
        monkeypatch.setattr(launch, "preflight", lambda spec: ())

        def command(spec, port):
            return [sys.executable, *(str(word).format(port=port) for word in words)]

        monkeypatch.setattr(launch, "server_command", command)

    return use


def alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def fails(log, **options):
    with pytest.raises(WiringError) as error, start(SPEC, log, **options):
        pass
    assert error.value.where == str(log)
    return error.value


def test_the_block_holds_a_healthy_server_and_ends_it(stand_in, tmp_path):
    stand_in(PROGRAMS / "answering.py", "{port}")
    lines = []
    with start(SPEC, tmp_path / "log", timeout_s=60, progress=lines.append) as server:
        assert alive(server.pid) and server.log == tmp_path / "log"
        assert server.client.generate([1, 2, 3], 2).output_ids == (4, 5)
    assert not alive(server.pid)
    assert any(str(tmp_path / "log") in line for line in lines)


@pytest.mark.parametrize("error", [RuntimeError("in the notebook"), KeyboardInterrupt()])
def test_an_error_in_the_block_ends_the_server_and_propagates(stand_in, tmp_path, error):
    stand_in(PROGRAMS / "answering.py", "{port}")
    with pytest.raises(type(error)), start(SPEC, tmp_path / "log", timeout_s=60) as server:
        raise error
    assert not alive(server.pid)


@pytest.mark.timeout(60)  # far below the start's own limit
def test_a_server_that_dies_during_the_start_is_reported_at_once(stand_in, tmp_path):
    stand_in(PROGRAMS / "tree.py", tmp_path / "pids", "exit-after", "0", "7")
    error = fails(tmp_path / "log", timeout_s=3600)
    assert (error.code, error.found) == ("server-died-at-start", "exit status 7")
    assert "RuntimeError: the stand-in gave up" in error.problem
    assert error.remedy.endswith("RuntimeError: the stand-in gave up")  # the end of the log
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert not [pid for pid in pids if alive(pid)]
    Path(f"/dev/shm/sglang_stand_in_{pids[0]}").unlink(missing_ok=True)  # it mostly ends before it is looked for


@pytest.mark.timeout(60)  # far below the start's own limit
def test_a_server_with_a_taken_port_is_ended_and_reported_at_once(stand_in, tmp_path):
    """SGLang does not exit there by itself. The line is from a log of 0.5.23."""
    line = "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 28014): address already in use"
    stand_in("-c", f"import time; print({line!r}, flush=True); time.sleep(3600)")
    error = fails(tmp_path / "log", timeout_s=3600)
    assert error.code == "server-port-taken" and "28014" in error.found


def test_a_server_that_is_never_ready_is_ended_and_reported(stand_in, tmp_path):
    stand_in(PROGRAMS / "answering.py", "{port}", "silent")

    def wait_for_the_log(line):
        while "Load weight begin" not in (tmp_path / "log").read_text():
            time.sleep(0.05)

    error = fails(tmp_path / "log", timeout_s=0, progress=wait_for_the_log)
    assert error.code == "server-not-ready" and error.found.startswith("still ")
    assert "engine.startup_timeout_s" in error.remedy and "Load weight begin" in error.remedy
    assert not [c for c in psutil.Process().children(recursive=True) if "answering.py" in " ".join(c.cmdline())]


def test_a_server_that_dies_later_is_reported_by_the_next_request(stand_in, tmp_path):
    stand_in(PROGRAMS / "answering.py", "{port}")
    with start(SPEC, tmp_path / "log", timeout_s=60) as server:
        psutil.Process(server.pid).kill()
        with pytest.raises(WiringError) as error:
            server.client.generate([1], 1)
    assert (error.value.code, error.value.where) == ("server-died", str(tmp_path / "log"))
    assert "signal 9" in error.value.found


def test_servers_started_in_two_threads_get_different_ports(stand_in, tmp_path):
    stand_in(PROGRAMS / "answering.py", "{port}")
    both, urls = threading.Barrier(2, timeout=60), []

    def serve(name):
        with start(SPEC, tmp_path / name, timeout_s=60) as server:
            urls.append(server.url)
            both.wait()

    threads = [threading.Thread(target=serve, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(urls)) == 2


def test_the_workers_of_each_server_get_a_port_of_their_own(stand_in, tmp_path, monkeypatch):
    stand_in(PROGRAMS / "answering.py", "{port}")
    started, command = [], launch.server_command
    monkeypatch.setattr(
        launch, "server_command", lambda spec, port: started.append((spec, port)) or command(spec, port)
    )
    for flags in ((), (), ("--nccl-port", "21000")):
        with start(ServerSpec(Path("/t"), extra_flags=flags), tmp_path / "log", timeout_s=60):
            pass
    ports = [value(server_command(spec, port), "--nccl-port") for spec, port in started]
    assert len({*ports, *(str(port) for _, port in started)}) == 6 and ports[2] == "21000"  # the caller's flag wins


def value(command, flag):
    return command[len(command) - 1 - command[::-1].index(flag) + 1]


def test_the_command_has_the_speculation_as_requested():
    command = server_command(SPEC, 20001)
    assert value(command, "--speculative-algorithm") == "EAGLE3"
    assert value(command, "--speculative-draft-model-path") == "/models/draft"
    asked = [value(command, f"--speculative-{name}") for name in ("num-steps", "eagle-topk", "num-draft-tokens")]
    assert asked == ["5", "1", "8"]  # not the 6 that SGLang resolves
    assert (value(command, "--host"), value(command, "--port")) == ("127.0.0.1", "20001")
    assert {"--enable-metrics", "--sleep-on-idle"} <= set(command)
    assert value(command, "--device") == "cpu"


def test_the_command_without_a_draft_and_on_cuda():
    command = server_command(ServerSpec(Path("/t"), device="cuda", dtype="bfloat16"), 1)
    assert command[:3] == [sys.executable, "-m", "sglang.launch_server"]
    assert not [word for word in command if "speculative" in word or word == "--device"]
    assert value(command, "--dtype") == "bfloat16"


def test_extra_flags_come_last_and_win():
    command = server_command(ServerSpec(Path("/t"), extra_flags=("--max-total-tokens", "77")), 1)
    assert value(command, "--max-total-tokens") == "77"  # argparse keeps the last


def test_a_draft_without_speculation_is_refused():
    with pytest.raises(WiringError) as error:
        ServerSpec(Path("/t"), draft=Path("/d"))
    assert error.value.code == "draft-without-speculation"


def test_plugin_switches_reach_a_server_by_its_spec_only():
    base = {"WIRING_CAPTURE_DIR": "/elsewhere", "WIRING_EMBEDDING_ID": "1", "HOME": "/home/me"}
    plain = server_environment(ServerSpec(Path("/t"), device="cuda"), base)
    assert "WIRING_CAPTURE_DIR" not in plain and "WIRING_EMBEDDING_ID" not in plain and plain["HOME"] == "/home/me"
    asked = server_environment(ServerSpec(Path("/t"), env={"WIRING_CAPTURE_DIR": "/here"}), base)
    assert asked["WIRING_CAPTURE_DIR"] == "/here" and asked["WIRING_SGLANG_CPU"] == "1"
    assert base["WIRING_CAPTURE_DIR"] == "/elsewhere"


@pytest.mark.parametrize("width, device, threads", [(64, "cpu", "1"), (4096, "cpu", None), (64, "cuda", None)])
def test_a_narrow_target_is_served_by_one_thread_on_the_cpu(tmp_path, width, device, threads):
    (tmp_path / "config.json").write_text(f'{{"hidden_size": {width}}}')
    spec = ServerSpec(tmp_path, device=device)
    assert server_environment(spec, {}).get("OMP_NUM_THREADS") == threads
    assert server_environment(spec, {"OMP_NUM_THREADS": "6"})["OMP_NUM_THREADS"] == "6"


@pytest.mark.parametrize(
    "device, names", [("cuda", "theirs,x,wiring_capture"), ("cpu", "theirs,x,wiring_cpu,wiring_capture")]
)
def test_a_list_of_allowed_plugins_gains_those_of_the_spec(device, names):
    spec = ServerSpec(Path("/t"), device=device, env={"WIRING_CAPTURE_DIR": "/here"})
    assert server_environment(spec, {"SGLANG_PLUGINS": "theirs, x"})["SGLANG_PLUGINS"] == names
    assert "SGLANG_PLUGINS" not in server_environment(spec, {})


def test_a_patched_sglang_comes_first_on_its_server_s_path(tmp_path):
    spec = ServerSpec(Path("/models/target"), sglang=tmp_path)
    path = server_environment(spec, {"PYTHONPATH": "/mine"})["PYTHONPATH"].split(os.pathsep)
    assert path[0] == str(tmp_path) and path[-1] == "/mine" and len(path) > 2
    assert str(tmp_path) not in server_environment(ServerSpec(Path("/models/target")), {})["PYTHONPATH"]

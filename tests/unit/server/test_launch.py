"""The life of a server from start to end, with stand-ins for SGLang; and the command it would be started with."""

import importlib.util
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
from wiring.server.health import quiet_lines
from wiring.server.launch import ServerSpec, server_command, server_environment, start

PROGRAMS = Path(__file__).parent / "programs"
SPEC = ServerSpec(Path("/models/target"), Path("/models/draft"), Speculation(5, 1, 8))


@pytest.fixture
def stand_in(monkeypatch):
    """Let `start` run a program of ours in place of SGLang, without preflight."""

    def use(*words):
        monkeypatch.setattr("wiring.server.preflight.preflight", lambda spec: ())

        def command(spec, port):
            return [sys.executable, *(str(word).format(port=port) for word in words)]

        monkeypatch.setattr(launch, "server_command", command)

    return use


def alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_the_block_holds_a_healthy_server_and_ends_it(stand_in, tmp_path):
    stand_in(PROGRAMS / "answering.py", "{port}")
    lines = []
    with start(SPEC, tmp_path / "log", timeout_s=60, progress=quiet_lines(lines.append)) as server:
        assert alive(server.pid) and server.log == tmp_path / "log"
        assert server.client.generate([1, 2, 3], 2).output_ids == (4, 5)
    assert not alive(server.pid)
    assert any("SGLang server: " in line and str(tmp_path / "log") in line for line in lines)


@pytest.mark.parametrize("error", [RuntimeError("in the notebook"), KeyboardInterrupt()])
def test_an_error_in_the_block_ends_the_server_and_passes(stand_in, tmp_path, error):
    stand_in(PROGRAMS / "answering.py", "{port}")
    with pytest.raises(type(error)), start(SPEC, tmp_path / "log", timeout_s=60) as server:
        raise error
    assert not alive(server.pid)


@pytest.mark.timeout(60)  # far below the time that the server is given
def test_a_server_that_dies_in_start_up_is_told_at_once_with_its_last_words(stand_in, tmp_path):
    stand_in(PROGRAMS / "tree.py", tmp_path / "pids", "exit-after", "0", "7")
    with pytest.raises(WiringError) as told, start(SPEC, tmp_path / "log", timeout_s=3600):
        pass
    message = str(told.value)
    assert "died while starting: RuntimeError: the stand-in gave up" in message
    assert "exit status 7" in message and str(tmp_path / "log") in message
    assert message.rstrip(".").endswith("RuntimeError: the stand-in gave up")  # the log's end
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert not [pid for pid in pids if alive(pid)]
    Path(f"/dev/shm/sglang_stand_in_{pids[0]}").unlink(missing_ok=True)  # mostly it ends before the guard could look


@pytest.mark.timeout(60)  # far below the time that the server is given
def test_a_server_whose_port_is_taken_is_ended_and_told_at_once(stand_in, tmp_path):
    """SGLang does not end there by itself. The line is from a log of 0.5.23."""
    said = "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 28014): address already in use"
    stand_in("-c", f"import time; print({said!r}, flush=True); time.sleep(3600)")
    with pytest.raises(WiringError, match=r"cannot listen on its port .*28014.* start it again") as told:
        with start(SPEC, tmp_path / "log", timeout_s=3600):
            pass
    assert told.value.where == str(tmp_path / "log")


def test_a_server_that_is_never_ready_is_ended_and_told(stand_in, tmp_path):
    stand_in(PROGRAMS / "answering.py", "{port}", "silent")

    def hold_until_it_has_logged(progress):
        while "Load weight begin" not in progress.log.read_text():
            time.sleep(0.05)

    with pytest.raises(WiringError, match="not ready after 0 s .it was loading weights.") as told:
        with start(SPEC, tmp_path / "log", timeout_s=0, progress=hold_until_it_has_logged):
            pass
    assert "engine.startup_timeout_s" in str(told.value) and "Load weight begin" in str(told.value)
    assert not [c for c in psutil.Process().children(recursive=True) if "answering.py" in " ".join(c.cmdline())]


def test_a_server_that_dies_later_is_told_by_the_next_request(stand_in, tmp_path):
    stand_in(PROGRAMS / "answering.py", "{port}")
    with start(SPEC, tmp_path / "log", timeout_s=60) as server:
        psutil.Process(server.pid).kill()
        with pytest.raises(WiringError, match="died while it was in use") as told:
            server.client.generate([1], 1)
    assert str(tmp_path / "log") in str(told.value) and "signal 9" in str(told.value)


def test_servers_started_from_two_threads_get_ports_of_their_own(stand_in, tmp_path):
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


def test_servers_of_one_process_are_told_where_their_workers_meet(stand_in, tmp_path, monkeypatch):
    stand_in(PROGRAMS / "answering.py", "{port}")
    began, command = [], launch.server_command
    monkeypatch.setattr(launch, "server_command", lambda spec, port: began.append((spec, port)) or command(spec, port))
    for flags in ((), (), ("--nccl-port", "21000")):
        with start(ServerSpec(Path("/t"), extra_flags=flags), tmp_path / "log", timeout_s=60):
            pass
    meet = [value(server_command(spec, port), "--nccl-port") for spec, port in began]
    assert len({*meet, *(str(port) for _, port in began)}) == 6 and meet[2] == "21000"  # the reader's own wins


def value(command, flag):
    return command[len(command) - 1 - command[::-1].index(flag) + 1]


def test_the_command_passes_the_speculation_as_asked():
    command = server_command(SPEC, 20001)
    assert value(command, "--speculative-algorithm") == "EAGLE3"
    assert value(command, "--speculative-draft-model-path") == "/models/draft"
    asked = [value(command, f"--speculative-{name}") for name in ("num-steps", "eagle-topk", "num-draft-tokens")]
    assert asked == ["5", "1", "8"]  # not the 6 that SGLang makes of it
    assert (value(command, "--host"), value(command, "--port")) == ("127.0.0.1", "20001")
    assert {"--enable-metrics", "--sleep-on-idle"} <= set(command)
    assert value(command, "--device") == "cpu"


def test_the_command_without_a_draft_and_on_cuda():
    command = server_command(ServerSpec(Path("/t"), device="cuda", dtype="bfloat16", sleep_on_idle=False), 1)
    assert command[:3] == [sys.executable, "-m", "sglang.launch_server"]
    assert not [word for word in command if "speculative" in word or word in ("--sleep-on-idle", "--device")]
    assert value(command, "--dtype") == "bfloat16"


def test_the_readers_flags_come_last_so_that_they_win():
    command = server_command(ServerSpec(Path("/t"), extra_flags=("--max-total-tokens", "77")), 1)
    assert value(command, "--max-total-tokens") == "77"  # argparse keeps the last


def test_half_a_draft_is_refused():
    with pytest.raises(WiringError, match="come together"):
        ServerSpec(Path("/t"), draft=Path("/d"))


def test_switches_reach_a_server_by_its_spec_only():
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


def test_a_list_of_allowed_plugins_keeps_the_readers_and_gains_those_asked_for():
    spec = ServerSpec(Path("/t"), device="cuda", env={"WIRING_CAPTURE_DIR": "/here"})
    assert server_environment(spec, {"SGLANG_PLUGINS": "theirs"})["SGLANG_PLUGINS"] == "theirs,wiring_capture"
    assert "SGLANG_PLUGINS" not in server_environment(spec, {})


def test_a_patched_sglang_comes_first_on_its_servers_path(tmp_path):
    spec = ServerSpec(Path("/models/target"), sglang=tmp_path)
    path = server_environment(spec, {"PYTHONPATH": "/mine"})["PYTHONPATH"].split(os.pathsep)
    assert path[0] == str(tmp_path) and path[-1] == "/mine" and len(path) > 2
    assert str(tmp_path) not in server_environment(ServerSpec(Path("/models/target")), {}).get("PYTHONPATH", "")


def test_the_installed_sglang_is_not_put_before_everything_else(tmp_path):
    package = Path(importlib.util.find_spec("sglang").submodule_search_locations[0])
    plain = server_environment(ServerSpec(Path("/models/target")), {})
    for folder in (package.parent, tmp_path / "linked"):
        if folder.name == "linked":
            folder.mkdir()
            (folder / "sglang").symlink_to(package)
        assert server_environment(ServerSpec(Path("/models/target"), sglang=folder), {}) == plain

"""Whatever ends the owner, nothing of the server's process tree is left."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from wiring.errors import WiringError
from wiring.server.supervised import GuardedProcess

PROGRAMS = Path(__file__).parent / "programs"
TREE, OWNER = str(PROGRAMS / "tree.py"), str(PROGRAMS / "owner.py")
LIMIT_S = 10.0  # what we promise


def gone(pids):
    """Wait for the promised time; the ids of those that still live (a zombie is gone but for its parent's look)."""
    deadline = time.monotonic() + LIMIT_S
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def shared_memory(pids):
    return Path(f"/dev/shm/sglang_stand_in_{pids[0]}")


def tree_pids(path):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, "the tree never came up"
        time.sleep(0.02)
    pids = [int(pid) for pid in path.read_text().split()]
    assert len(pids) == 3 and all(alive(pid) for pid in pids)
    return pids


@pytest.fixture
def spawn(tmp_path):
    """Spawn the tree behind a guard of this process; returns (process, its three ids)."""
    started = []

    def start(*arguments, **options):
        told, log = tmp_path / f"pids{len(started)}", tmp_path / "server.log"
        command = [sys.executable, TREE, str(told), *arguments]
        process = GuardedProcess.spawn(command, os.environ, log, **{"grace_s": 0.0, "scratch": False, **options})
        started.append(process)
        return process, tree_pids(told)

    yield start
    for process in started:
        process.stop()


@pytest.fixture
def owner(tmp_path):
    """Start an owner in another process; returns (owner, ids of its tree, id of its forked copy or -1)."""
    started = []

    def start(*options):
        told = tmp_path / "pids"
        command = [sys.executable, OWNER, str(tmp_path / "log"), *options, "--", sys.executable, TREE, str(told)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        )
        started.append(process)
        main, copy = map(int, process.stdout.readline().split())
        pids = tree_pids(told)
        assert pids[0] == main
        return process, pids, copy

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("grace_s", [0.0, 1.0])
def test_stop_ends_the_whole_tree(spawn, grace_s):
    process, pids = spawn(grace_s=grace_s)
    assert process.exit_status is None and process.pid == pids[0]
    assert shared_memory(pids).exists()
    process.stop()
    assert not [pid for pid in pids if alive(pid)]  # at once: stop returns when it is done
    assert not shared_memory(pids).exists()
    assert process.exit_status == 128 + (signal.SIGTERM if grace_s else signal.SIGKILL)
    process.stop()  # a second time is no error


def test_killing_the_owner_ends_the_tree(owner):
    process, pids, _ = owner()
    process.kill()
    assert gone(pids) == []


def test_a_forked_copy_of_the_owner_does_not_keep_the_tree_alive(owner):
    process, pids, copy = owner("--fork")
    try:
        process.kill()
        process.wait()
        assert alive(copy)
        assert gone(pids) == []
    finally:
        os.kill(copy, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asking_the_guard_ends_the_tree(spawn, number):
    process, pids = spawn()
    os.kill(psutil.Process(process.pid).ppid(), number)
    assert gone(pids) == []
    assert process.wait(LIMIT_S) is not None


def test_killing_the_guard_ends_the_servers_session(spawn):
    process, pids = spawn()
    os.kill(psutil.Process(process.pid).ppid(), signal.SIGKILL)
    in_session, left_session = pids[:2], pids[2]
    assert gone(in_session) == []
    os.kill(left_session, signal.SIGKILL)  # nobody is left who knew of it
    shared_memory(pids).unlink()


def test_a_server_that_ends_by_itself_leaves_nothing(spawn, tmp_path):
    process, pids = spawn("exit-after", "8", "3")  # the guard looks for shared memory every 3 s
    assert process.wait(30) == 3
    assert gone(pids) == []
    assert not shared_memory(pids).exists()
    assert "the stand-in gave up" in (tmp_path / "server.log").read_text()


def test_the_scratch_folder_goes_with_the_server(spawn):
    process, pids = spawn(scratch=True)
    (temporary,) = {value for name, value in psutil.Process(pids[0]).environ().items() if name == "TMPDIR"}
    assert (Path(temporary) / "left-behind").exists()
    process.stop()
    assert not Path(temporary).exists()


def test_a_server_started_in_a_thread_outlives_the_thread(spawn):
    result = []
    thread = threading.Thread(target=lambda: result.append(spawn()))
    thread.start()
    thread.join()
    process, pids = result[0]
    time.sleep(0.5)  # the guard polls every 0.1 s
    assert process.exit_status is None and all(alive(pid) for pid in pids)


def test_two_trees_end_one_by_one(spawn):
    (first, first_pids), (second, second_pids) = spawn(), spawn()
    first.stop()  # its pipe must not have leaked into the second guard
    assert not [pid for pid in first_pids if alive(pid)]
    assert all(alive(pid) for pid in second_pids)
    second.stop()
    assert not [pid for pid in second_pids if alive(pid)]


def test_a_command_that_cannot_run_is_told(tmp_path):
    with pytest.raises(WiringError, match="cannot be executed.*no-such-program"):
        GuardedProcess.spawn(["/no-such-program"], os.environ, tmp_path / "log", grace_s=0.0, scratch=False)


def test_a_log_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WiringError, match="log cannot be written"):
        GuardedProcess.spawn(["true"], os.environ, tmp_path / "file" / "log", grace_s=0.0, scratch=False)

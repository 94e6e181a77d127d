"""SIGKILL at any point of apply and undo: after the next call every file has the old bytes, or every file the new."""

import os
import random
import signal
import sys
import time

import pytest
from stand_in import FILES, simple_change, write_tree

from wiring.patch.source import Standing, apply, recover, status, undo
from wiring.patch.source.patch_state import FOLDER

WRITING = {
    "open",
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.chmod",
    "os.utime",
    "os.truncate",
    "os.listdir",
}


def child(work) -> int:
    """Fork a process that does `work` and nothing else; return its id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def killed(pid: int) -> bool:
    """Wait for a child; whether it was killed, else it must have ended well."""
    _, ended = os.waitpid(pid, 0)
    if os.WIFSIGNALED(ended):
        assert os.WTERMSIG(ended) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(ended) == 0
    return False


def kill_at(step: int, folder: str, work):
    """Do `work`, and be killed right before its `step`-th call to the system that names the tree."""
    seen = 0

    def hook(event, arguments):
        nonlocal seen
        # A name that is relative to an open folder (shutil.rmtree) does not name the tree; it counts too.
        if event in WRITING and arguments and (folder in str(arguments[0]) or not str(arguments[0]).startswith("/")):
            seen += 1
            if seen == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    work()


class Bench:
    """One tree, its old and its new bytes, and the two calls that lead from one to the other."""

    def __init__(self, folder):
        self.tree = write_tree(folder)
        self.old = self.bytes()
        self.change = simple_change(self.tree)
        self.new = {path: data + b"patched = True\n" for path, data in self.old.items()}

    def bytes(self):
        return {path: self.tree.file(path).read_bytes() for path in FILES}

    def start_from(self, operation: str):
        """The state that `operation` begins in, and what it does."""
        undo(self.tree)
        assert self.bytes() == self.old
        if operation == "apply":
            return lambda: apply(self.change)
        apply(self.change)
        return lambda: undo(self.tree)

    def check(self, following: str) -> str:
        """Make the next call, and see that the tree is as this call promises and holds nothing else."""
        if following == "recover":
            recover(self.tree)
        elif following == "apply":
            apply(simple_change(self.tree))
        else:
            undo(self.tree)
        now = self.bytes()
        assert now in (self.old, self.new)
        assert now == {"apply": self.new, "undo": self.old}.get(following, now)
        end = "old" if now == self.old else "new"
        assert status(self.tree).standing is (Standing.NONE if end == "old" else Standing.APPLIED)
        leftovers = [p.name for p in self.tree.package.rglob("*") if p.name.endswith(".tmp")]
        assert leftovers == [] and (self.tree.package / FOLDER).exists() == (end == "new")
        return end


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # a kill loses nothing that was written; a power cut would
    return Bench(tmp_path)


@pytest.mark.parametrize("following", ["recover", "apply", "undo"])
@pytest.mark.parametrize("operation", ["apply", "undo"])
def test_killed_before_each_call_to_the_system(bench, operation, following):
    ends, step, in_between = set(), 0, 0
    while True:
        step += 1
        work = bench.start_from(operation)
        if not killed(child(lambda step=step, work=work: kill_at(step, str(bench.tree.package), work))):
            break
        in_between += bench.bytes() not in (bench.old, bench.new)
        ends.add(bench.check(following))
    assert step > 30  # there were that many points
    assert in_between > 3  # and at some of them only a part of the files was new
    assert ends == {"apply": {"new"}, "undo": {"old"}}.get(following, {"old", "new"})


@pytest.mark.parametrize("wanted", [20, pytest.param(200, marks=pytest.mark.long)])
def test_kills_at_random_times(bench, wanted):
    source = random.Random(20260102)
    taken = {}
    for operation in ("apply", "undo"):
        work, began = bench.start_from(operation), time.perf_counter()
        assert not killed(child(work))
        taken[operation] = time.perf_counter() - began
    kills, ends, tries, in_between = 0, set(), 0, 0
    while kills < wanted or in_between <= wanted // 40:
        tries += 1
        assert tries < 2000
        operation = source.choice(("apply", "undo"))
        pid = child(bench.start_from(operation))
        time.sleep(source.uniform(0, taken[operation]))
        os.kill(pid, signal.SIGKILL)
        hit = killed(pid)
        taken[operation] *= 1.05 if hit else 0.9  # what the machine does beside it may have changed since
        kills += hit
        in_between += status(bench.tree).standing is Standing.INTERRUPTED
        ends.add(bench.check(source.choice(("recover", "apply", "undo"))))
    assert ends == {"old", "new"}


def test_a_kill_of_the_recovery_itself_is_recovered(bench):
    folder = str(bench.tree.package)

    def interrupt(step):
        work = bench.start_from("apply")
        assert killed(child(lambda: kill_at(step, folder, work)))

    first = 1  # the step after which the journal stands
    interrupt(first)
    while status(bench.tree).standing is not Standing.INTERRUPTED:
        first += 1
        interrupt(first)
    for step in range(1, 200):
        interrupt(first)
        again = killed(child(lambda step=step: kill_at(step, folder, lambda: recover(bench.tree))))
        assert bench.check("recover") == "new"
        if not again:
            break
    assert step > 10

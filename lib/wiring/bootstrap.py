"""Make `.venv` what pyproject.toml asks for: `python3 -I lib/wiring/bootstrap.py [--route ROUTE] [--browser|--peers]`.

Standard library only, because it runs before anything is installed. What is installed is a list of
steps; each leaves a digest of its pins in `.venv/wiring-installed.json` when it is through, and a step
whose digest stands there is skipped. So nothing is installed twice, a changed pin is, and an
interrupted installation is continued: the digest is written last. With `--browser` the package
that the browser tests drive one with is installed too. With `--peers` the same is done for `.venv-peers`:
other trainers' packages, which pin libraries of their own and so cannot share `.venv`.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

STAMP = "wiring-installed.json"
UNFINISHED = "wiring-unfinished"
ROUTE_VARIABLE = "WIRING_ROUTE"
PEERS = "peers"  # the route that makes .venv-peers
TESTED_PYTHON = "3.11"
_NO_NETWORK = (
    "name resolution",
    "NewConnectionError",
    "ConnectionError",
    "Network is unreachable",
    "ConnectTimeout",
    "Max retries exceeded",
    "ProxyError",
    "No matching distribution found",
)


class Refusal(Exception):
    """The set-up cannot go on; the message says what is wrong and what to do."""


@dataclass(frozen=True)
class Step:
    """One call of pip: `requirements` and `options` are its arguments, `usual` says how long it takes."""

    name: str
    what: str
    usual: str
    requirements: tuple[str, ...]
    options: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    settles: str = ""

    @property
    def digest(self) -> str:
        """What must change for the step to run again: its pins, its options, and `settles`."""
        parts = (self.requirements, self.options, self.constraints, self.settles)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def read_project(root: Path) -> dict:
    """pyproject.toml as a dict; Refusal where this Python is older than `requires-python` asks."""
    minimum = (3, 11)
    if sys.version_info < minimum:
        raise Refusal(
            f"This is Python {platform.python_version()} ({sys.executable}); the workbook needs 3.11 or newer. "
            "Install it (Debian, Ubuntu: apt install python3 python3-venv) and call `make PYTHON=/path/to/python3.11`."
        )
    import tomllib  # new in 3.11, so only behind the check

    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    asked = project["project"]["requires-python"]
    if sys.version_info[:2] < tuple(int(part) for part in asked.removeprefix(">=").split(".")):
        raise Refusal(f"This is Python {platform.python_version()}; pyproject.toml asks for {asked}.")
    return project


def has_cuda_device() -> bool:
    """Whether the machine has an NVIDIA device that its driver can see."""
    if any(Path("/dev").glob("nvidia[0-9]*")):
        return True
    command = shutil.which("nvidia-smi")
    if command is None:
        return False
    try:
        found = subprocess.run([command, "-L"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return found.returncode == 0 and "GPU" in found.stdout


def choose_route(asked: str, has_device=has_cuda_device) -> str:
    """The route "gpu" or "cpu": as asked, else by whether there is a CUDA device."""
    if asked not in ("", "auto", "cpu", "gpu"):
        raise Refusal(f"There is no route {asked!r}. Say cpu, gpu or auto ({ROUTE_VARIABLE} or --route).")
    if asked in ("cpu", "gpu"):
        return asked
    return "gpu" if has_device() else "cpu"


def plan(project: dict, route: str, browser: bool = False) -> tuple[Step, ...]:
    """The steps of a route, in order, from the pins in pyproject.toml; with `browser` what drives one as the last."""
    extras = project["project"]["optional-dependencies"]
    settings = project["tool"]["wiring"]["bootstrap"]
    if route == PEERS:
        return _plan_peers(settings, project["tool"]["wiring"]["peers"])
    pins = tuple(project["project"]["dependencies"]) + tuple(extras["lab"]) + tuple(extras["test"])
    itself = {key: project["project"].get(key) for key in ("name", "version", "scripts", "entry-points")}
    last = Step(
        "workbook",
        "the package wiring, in place",
        "10 s",
        ("-e", "."),
        ("--no-deps", "--no-build-isolation"),
        settles=json.dumps([itself, project["tool"].get("setuptools")], sort_keys=True),
    )
    tools = Step("tools", "the installer itself", "5 s", tuple(settings["tools"]))
    if route == "gpu":
        pins += tuple(extras["gpu"])
        packages = Step("packages", "SGLang with its CUDA packages", "10 to 20 minutes, 10 GB", pins)
        steps = (tools, packages, last)
    else:
        constraints = tuple(settings["cpu-constraints"])
        packages = Step(
            "packages",
            "torch and all libraries",
            "2 to 4 minutes, 1.6 GB to download, 2.9 GB where pip has PyPI alone",
            pins + tuple(extras["cpu"]),
            constraints=constraints,
        )
        bare = Step("sglang", "SGLang without CUDA", "20 s", tuple(extras["cpu-nodeps"]), ("--no-deps",))
        steps = (tools, packages, bare, last)
    if browser:
        steps += (Step("browser", "Playwright, without a browser", "10 s, 140 MB", tuple(extras["browser"])),)
    return steps


def _plan_peers(settings: dict, peers: dict) -> tuple[Step, ...]:
    constraints = tuple(settings["cpu-constraints"]) + tuple(peers["constraints"])
    return (
        Step("tools", "the installer itself", "5 s", tuple(settings["tools"])),
        Step(
            "packages",
            "torch and what the trainers import",
            "1 to 3 minutes, 2.6 GB",
            tuple(peers["packages"]),
            constraints=constraints,
        ),
        Step(
            "trainers",
            "the trainers without their own pins",
            "10 s",
            tuple(peers["packages-nodeps"]),
            ("--no-deps",),
        ),
    )


def environment_of(root: Path, route: str) -> Path:
    """The folder of the virtual environment that `route` makes."""
    return root / (".venv-peers" if route == PEERS else ".venv")


def _minor() -> str:
    return "{}.{}".format(*sys.version_info[:2])


def identity(root: Path, route: str) -> dict[str, str]:
    """What makes an environment another one: a change here starts `.venv` afresh."""
    python = f"{platform.python_implementation()} {_minor()} {platform.machine()}"
    return {"python": python, "route": route, "root": str(root)}


def read_stamp(environment: Path) -> dict:
    """What is installed, or {} where nothing (readable) says so."""
    try:
        stamp = json.loads((environment / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) and isinstance(stamp.get("steps"), dict) else {}


def write_stamp(environment: Path, stamp: dict) -> None:
    """Write the stamp whole or not at all."""
    temporary = environment / (STAMP + ".tmp")
    temporary.write_text(json.dumps(stamp, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, environment / STAMP)


def drop_half_installed(environment: Path) -> list[str]:
    """Forget distributions that were cut off while being unpacked, so that pip installs them again.

    pip writes RECORD last; a dist-info folder without one would pass for installed.
    """
    dropped = []
    for folder in sorted(environment.glob("lib/python*/site-packages/*.dist-info")):
        if not (folder / "RECORD").exists():
            dropped.append(folder.name.removesuffix(".dist-info"))
            shutil.rmtree(folder)
    return dropped


def create_environment(environment: Path, clear: bool) -> None:
    """A virtual environment with pip; Refusal where Python comes without the modules for it."""
    command = [sys.executable, "-I", "-m", "venv", *(["--clear"] if clear else []), str(environment)]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        said = (made.stdout + made.stderr).strip().splitlines()[-6:]
        raise Refusal(
            "Python could not make a virtual environment:\n  "
            + "\n  ".join(said)
            + "\nOn Debian and Ubuntu: apt install python3-venv. Then call make again."
        )


def environment_fits(environment: Path) -> bool:
    """Whether `.venv` has a working Python of this minor version, and pip."""
    python = environment / "bin" / "python"
    if not python.exists():
        return False
    code = "import pip, sys; print('{}.{}'.format(*sys.version_info[:2]))"
    found = subprocess.run([str(python), "-I", "-c", code], capture_output=True, text=True)
    return found.returncode == 0 and found.stdout.strip() == _minor()


def run_logged(command: list[str], log: Path, step: Step) -> int:
    """Run pip with its output in `log`, and say every now and then that it still runs; its exit status."""
    terminal = sys.stdout.isatty()
    environ = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "PIP_USER")}
    began = time.monotonic()
    with open(log, "w", encoding="utf-8") as output:
        # close_fds=False hands pip the lock of `alone`: while it runs, even orphaned, nobody else installs.
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environ, cwd=log.parent.parent, close_fds=False
        )
        try:
            told = began
            while process.poll() is None:
                time.sleep(0.2)
                if time.monotonic() - told >= (1 if terminal else 30):
                    told = time.monotonic()
                    text = f"  {step.name}: {told - began:4.0f} s  {_last_line(log)[:70]:70}"
                    print(f"\r{text}" if terminal else text, end="" if terminal else "\n", flush=True)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(timeout=10)
            if terminal:
                print("\r" + " " * 100 + "\r", end="", flush=True)
    return process.returncode


def _last_line(log: Path) -> str:
    with open(log, "rb") as handle:
        handle.seek(max(0, os.fstat(handle.fileno()).st_size - 2000))
        lines = [line for line in handle.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def explain_failure(step: Step, log: Path) -> str:
    """The sentence for a pip that failed: no network, or the end of its log."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = [line for line in text.splitlines() if line.strip()]
    end = "\n  ".join(lines[-8:])
    if "No space left" in text:
        return f"The disk is full: {step.name} needs room ({step.usual}). Log: {log}\n  {end}"
    if any(sign in text for sign in _NO_NETWORK):
        return (
            f"The package index could not be reached or lacks a pinned package while installing {step.name}. Check the "
            f"network (a proxy goes into HTTPS_PROXY, a mirror into PIP_INDEX_URL) and that this Python "
            f"({platform.python_version()}; tested with {TESTED_PYTHON}) has wheels; then call make again, it goes on "
            f"where it stopped. Log: {log}\n  {end}"
        )
    return f"pip could not install {step.name}. Log: {log}\n  {end}"


def ensure(root: Path, route: str, *, browser: bool = False, runner=run_logged, say=print) -> tuple[str, ...]:
    """Bring the environment of `route` under `root` up to date; the names of the steps that had to run.

    `runner(command, log, step)` runs pip and returns its exit status. Raises Refusal where a step fails;
    what was installed before it stays and is not installed again.
    """
    environment = environment_of(root, route)
    steps = plan(read_project(root), route, browser)
    wanted = identity(root, route)
    stamp = read_stamp(environment)
    same = all(stamp.get(key) == value for key, value in wanted.items())
    if same and all(stamp["steps"].get(step.name) == step.digest for step in steps) and environment_fits(environment):
        return ()
    _prepare(environment, fresh=bool(stamp) and not same, say=say)
    unfinished = environment / UNFINISHED
    unfinished.touch()
    stamp = read_stamp(environment)  # a fresh environment has none
    done: dict[str, str] = dict(stamp["steps"]) if stamp else {}
    ran = []
    for step in steps:
        if done.get(step.name) == step.digest:
            continue
        log = environment / f"install-{step.name}.log"
        say(f"Installing {step.name}: {step.what}; usually {step.usual}. Log: {log}")
        if runner(_pip(environment, step), log, step):
            raise Refusal(explain_failure(step, log))
        done[step.name] = step.digest
        write_stamp(environment, {**wanted, "steps": done})
        ran.append(step.name)
    unfinished.unlink()
    return tuple(ran)


def _prepare(environment: Path, fresh: bool, say) -> None:
    if fresh or not environment_fits(environment):
        say(f"Making {environment} with Python {platform.python_version()}; usually 5 s.")
        create_environment(environment, clear=environment.exists())
    elif (environment / UNFINISHED).exists():
        dropped = drop_half_installed(environment)
        say("The last installation was interrupted; going on." + (f" Again: {', '.join(dropped)}." if dropped else ""))


def _pip(environment: Path, step: Step) -> list[str]:
    command = [str(environment / "bin" / "python"), "-I", "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    if step.constraints:
        listed = environment / f"constraints-{step.name}.txt"
        listed.write_text("\n".join(step.constraints) + "\n", encoding="utf-8")
        command += ["--constraint", str(listed)]
    return [*command, *step.options, *step.requirements]


@contextlib.contextmanager
def alone(root: Path, say=print):
    """Hold a lock on the folder, so that two makes do not install into one environment at once."""
    handle = os.open(root, os.O_RDONLY)
    os.set_inheritable(handle, True)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another make is installing here; waiting for it.")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def main(arguments: list[str] | None = None) -> int:
    """Entry point; the exit status."""
    parser = argparse.ArgumentParser(description="Install what pyproject.toml pins into .venv, where it is not yet.")
    parser.add_argument(
        "--route", default=os.environ.get(ROUTE_VARIABLE, ""), help="cpu, gpu or auto: which SGLang (default: auto)"
    )
    parser.add_argument("--browser", action="store_true", help="what the browser tests drive a browser with, too")
    parser.add_argument("--peers", action="store_true", help="the other trainers' packages, into .venv-peers")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    root = Path(__file__).resolve().parents[2]
    try:
        with alone(root):
            route = PEERS if options.peers else choose_route(options.route)
            began = time.monotonic()
            ran = ensure(root, route, browser=options.browser)
            if ran:
                print(f"Installed {', '.join(ran)} in {time.monotonic() - began:.0f} s ({route} route).", flush=True)
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted. Call make again; it goes on where it stopped.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`make lab` for real, without a browser: it prints the index's address, and its kernels run the notebooks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from websocket import create_connection

from wiring.server.ports import free_port

ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)(/lab/tree/\S+)\?token=([0-9a-f]+)")


@dataclass
class Lab:
    """A running JupyterLab: the path that it opens, its token, its port, the home folder that it was given."""

    path: str
    token: str
    port: int
    home: Path

    def get(self, path: str, **more) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", trust_env=False, timeout=60, **more)

    def api(self, path: str) -> dict:
        answer = self.get(f"/api/{path}", params={"token": self.token})
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def lab(tmp_path_factory, pytestconfig):
    """JupyterLab as `make lab` starts it, on a copy of the notebooks; the set-up does nothing, .venv is this Python."""
    root, checkout = pytestconfig.rootpath, tmp_path_factory.mktemp("lab") / "a checkout"
    home, port = checkout.parent / "home", free_port()
    (checkout / "tools").mkdir(parents=True)
    (checkout / "tools" / "setup.sh").write_text("#!/bin/sh\n")
    (checkout / "tools" / "setup.sh").chmod(0o755)
    shutil.copytree(root / "notebooks", checkout / "notebooks", ignore=shutil.ignore_patterns(".*"))
    shutil.copyfile(root / "Makefile", checkout / "Makefile")
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    home.mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "PYTEST", "JUPYTER", "XDG"))}
    log = checkout.parent / "lab.log"
    with log.open("w") as output:
        running = subprocess.Popen(
            ["make", "lab", f"LAB=--no-browser --ServerApp.port={port}"],
            cwd=checkout,
            stdout=output,
            stderr=output,
            env={**kept, "HOME": str(home)},
            stdin=subprocess.DEVNULL,
        )
    try:
        deadline = time.monotonic() + 400
        while not (found := ADDRESS.search(log.read_text())):
            assert running.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield Lab(found[2], found[3], int(found[1]), home)
    finally:
        running.terminate()
        running.wait(timeout=150)


def test_the_printed_address_opens_the_index_and_needs_the_token(lab):
    assert lab.path == "/lab/tree/notebooks/00_index.ipynb"
    page = lab.get(lab.path, params={"token": lab.token})
    assert page.status_code == 200 and "jupyter-config-data" in page.text
    assert lab.get("/api/contents").status_code == 403


def test_it_asks_nobody_about_news(lab):
    asked = lab.get("/lab/api/settings/@jupyterlab/apputils-extension:notification", params={"token": lab.token}).json()
    default = {name: part["default"] for name, part in asked["schema"]["properties"].items()}
    assert default["fetchNews"] == "false" and default["checkForUpdates"] is False


def test_the_notebooks_are_there_the_index_first(lab, pytestconfig):
    listed = sorted(entry["name"] for entry in lab.api("contents/notebooks")["content"] if entry["type"] == "notebook")
    assert listed == sorted(path.name for path in (pytestconfig.rootpath / "notebooks").glob("*.ipynb"))
    assert listed[0] == "00_index.ipynb"


def test_the_kernel_is_registered_in_this_environment_alone(lab):
    found = lab.api("kernelspecs")
    assert found["default"] == "wiring"
    spec = found["kernelspecs"]["wiring"]["spec"]
    assert (spec["display_name"], spec["argv"][0]) == ("wiring", sys.executable)
    assert Path(sys.prefix, "share", "jupyter", "kernels", "wiring", "kernel.json").is_file()
    assert list(lab.home.rglob("kernel.json")) == []


def run(lab: Lab, kernel: str, cells: list[str]) -> str:
    """Start a kernel in Lab, run cells, end it; all that was printed. Fails the test where a cell does."""
    made = httpx.post(
        f"http://127.0.0.1:{lab.port}/api/kernels",
        params={"token": lab.token},
        trust_env=False,
        timeout=60,
        json={"name": kernel, "path": "notebooks"},
    ).json()
    place = f"127.0.0.1:{lab.port}/api/kernels/{made['id']}"
    channel = create_connection(f"ws://{place}/channels?token={lab.token}", timeout=120)
    printed = ""
    try:
        for code in cells:
            name = uuid.uuid4().hex
            header = {"msg_id": name, "msg_type": "execute_request", "username": "", "session": name, "version": "5.3"}
            content = {"code": code, "silent": False}
            channel.send(
                json.dumps(
                    {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
                )
            )
            waits_for = {"reply", "idle"}  # from two sockets: the reply may overtake what the cell printed
            while waits_for:
                told = json.loads(channel.recv())
                if told["parent_header"].get("msg_id") != name:
                    continue
                if told["msg_type"] == "stream":
                    printed += told["content"]["text"]
                if told["msg_type"] == "execute_reply":
                    assert told["content"]["status"] == "ok", told["content"]
                    waits_for.discard("reply")
                if told["msg_type"] == "status" and told["content"]["execution_state"] == "idle":
                    waits_for.discard("idle")
    finally:
        channel.close()
        httpx.delete(f"http://{place}", params={"token": lab.token}, trust_env=False, timeout=60)
    return printed


def test_the_index_runs_in_the_kernel_that_it_names_which_is_the_python_of_wiring(lab):
    index = json.loads(Path(__file__).parents[3].joinpath("notebooks", "00_index.ipynb").read_text())
    assert index["metadata"]["kernelspec"]["name"] == "python3"
    cells = ["".join(cell["source"]) for cell in index["cells"] if cell["cell_type"] == "code"]
    tell = "import os, sys\nprint(sys.prefix, os.environ['PLOTLY_RENDERER'], os.path.basename(os.getcwd()))"
    assert run(lab, "python3", [*cells, tell]).splitlines()[-1] == f"{sys.prefix} plotly_mimetype notebooks"

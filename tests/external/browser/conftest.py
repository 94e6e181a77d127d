"""A browser and a JupyterLab for the browser tests, each ended by its own handle; screenshots lie in runs/browser/."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wiring.figures.export_images import find_browser
from wiring.server.ports import free_port

SCREEN = {"width": 1440, "height": 1600}  # a widget is seen whole
SETTINGS = {
    "apputils-extension/notification": '{"fetchNews": "false", "checkForUpdates": false}',  # nothing outside is asked
}


def pytest_collection_modifyitems(items):
    """Everything here needs a browser; nothing of a browser is imported before a test runs."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(2400))


@pytest.fixture(scope="session")
def chromium():
    """The browser of this machine, without a window."""
    from playwright.sync_api import sync_playwright

    # Its sandbox refuses root; a container's /dev/shm may be too small for it.
    flags = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which(find_browser()), args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def pictures(pytestconfig):
    """The folder of the screenshots: git ignores it, and a run replaces what lies there by name."""
    folder = pytestconfig.rootpath / "runs" / "browser"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def lab(pytestconfig, tmp_path_factory):
    """JupyterLab on 127.0.0.1 with a token, over a copy of what the notebooks read and import; it saves there.

    The notebooks of the copy have no outputs: what is seen in them was made in this Lab.
    """
    import nbformat
    from in_lab import Lab

    root, copy = pytestconfig.rootpath, tmp_path_factory.mktemp("browser") / "checkout"
    for part in ("lib", "data", "notebooks"):
        shutil.copytree(root / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for path in (copy / "notebooks").glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.execution_count, cell.outputs = None, []
        nbformat.write(notebook, path)
    home, token, port = copy.parent / "home", secrets.token_hex(16), free_port()
    for name, text in SETTINGS.items():
        path = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "PYTEST", "JUPYTER", "XDG"))}
    places = dict(HOME=home, JUPYTERLAB_SETTINGS_DIR=home / "settings", JUPYTERLAB_WORKSPACES_DIR=home / "workspaces")
    kept |= {name: str(path) for name, path in places.items()} | {"JUPYTER_PREFER_ENV_PATH": "1"}
    kept |= {"PYTHONPATH": str(copy / "lib"), "PLOTLY_RENDERER": "plotly_mimetype", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ServerApp.ip=127.0.0.1"]
    command += [f"--ServerApp.port={port}", f"--ServerApp.root_dir={copy}", f"--IdentityProvider.token={token}"]
    command += ["--allow-root"] if os.geteuid() == 0 else []
    log = copy.parent / "lab.log"
    with log.open("w") as output:
        running = subprocess.Popen(command, cwd=copy, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=kept)
    try:
        started = Lab(f"http://127.0.0.1:{port}", token, copy)
        deadline = time.monotonic() + 120
        while not started.answers():
            assert running.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield started
    finally:
        running.terminate()  # it ends its kernels
        running.wait(timeout=60)


@pytest.fixture(scope="session")
def books(chromium, lab, pictures):
    """A function from a notebook's name to the notebook, opened in a workspace of its own and run to its end once."""
    from in_lab import Book

    context, opened = chromium.new_context(viewport=SCREEN), {}

    def book(name: str) -> Book:
        if name not in opened:
            opened[name] = Book(context.new_page(), lab, name)
            opened[name].run_all()
        opened[name].page.bring_to_front()
        return opened[name]

    book.opened = opened
    yield book
    context.close()


@pytest.fixture
def small_server():
    """What the server panel attaches to."""
    from small_server import SmallServer

    server = SmallServer()
    yield server
    server.close()


@pytest.fixture
def picture(pictures, request):
    """A function that keeps a picture of something on a page, named after the test."""

    def keep(shown, name: str = "", **options) -> None:
        words = re.sub(r"[^\w-]+", "-", request.node.name.removeprefix("test_")).strip("-")
        shown.screenshot(path=pictures / f"{words}{name and '-'}{name}.png", **options)

    return keep

"""README and docs: generated pages are current, links lead somewhere, and every command line works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import docs
import pytest

ROOT = docs.ROOT
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```bash(?P<needs>[^\n]*)\n(?P<lines>.*?)^```", re.M | re.S)


def blocks(needs: str):
    """Return (page, lines) of every fenced bash block marked with `needs`: "", "server" or "gpu"."""
    for page in PAGES:
        for found in BLOCK.finditer(page.read_text(encoding="utf-8")):
            if found["needs"].strip() == needs:
                yield pytest.param(found["lines"].splitlines(), id=f"{page.stem}:{found['lines'].split(' -')[0][:40]}")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder in which the paths of the docs exist; what a command writes goes here."""
    for name in ("data", "docs", "tests", "notebooks", "tools", "Makefile"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def run(lines: list[str], folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for line in lines:
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0] == "make":
            words.insert(1, "--dry-run")
        if words[0] == "wiring":
            words[:1] = [sys.executable, "-m", "wiring"]
        ran = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
        # diagnose and lint exit with 1 where they find something; 2 and above is an error.
        assert ran.returncode in (0, 1) and "Traceback" not in ran.stderr, f"{line}\n{ran.stdout}\n{ran.stderr}"


@pytest.mark.parametrize("lines", list(blocks("")))
def test_the_commands_of_the_docs_work(lines, checkout):
    run(lines, checkout)


@pytest.mark.server
@pytest.mark.long
@pytest.mark.parametrize("lines", list(blocks("server")))
def test_the_commands_of_the_docs_that_start_servers_work(lines, checkout):
    run(lines, checkout)


def test_commands_that_are_not_run_name_real_commands_and_options():
    """Blocks marked gpu need a machine of the reader: their commands and options must exist."""
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for parameter in blocks("gpu"):
        for line in parameter.values[0]:
            words = shlex.split(line.split(">")[0], comments=True)
            if words[:1] != ["wiring"]:
                continue
            name = " ".join(words[1:3]) if words[1] == "patch" else words[1]
            section = re.search(rf"^#+ `wiring {re.escape(name)}`\n(.*?)(?=^#+ `wiring|\Z)", text, re.M | re.S)
            assert section, line
            for option in (word for word in words if word.startswith("--")):
                assert f"`{option}" in section[1] or f"{option} " in section[1], f"{line}: {option}"


@pytest.mark.parametrize("name", docs.PAGES)
def test_generated_pages_are_current(name):
    """Run `python tools/docs.py` after a change to the command line or to a file's first docstring line."""
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == docs.PAGES[name]()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_named_files_exist(page):
    for name in re.findall(r"`((?:lib|tests|data|tools|notebooks|docs)/[\w./-]+)`", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 100

"""SGLang's published wheels: fetched once, kept outside the repository, read as zip files. Nothing is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from platformdirs import user_cache_path
from tenacity import retry, stop_after_attempt, wait_fixed


def folder() -> Path:
    """Where the wheels lie: WIRING_WHEELS, or the user's cache folder."""
    return Path(os.environ.get("WIRING_WHEELS") or user_cache_path("eagle3-wiring-workbook") / "sglang-wheels")


def wheel(version: str) -> Path:
    """The wheel of one SGLang release; downloaded by pip (which checks its hash) where it is not there yet."""
    found = _stored(version)
    return found if found is not None else _download(version)


def _stored(version: str) -> Path | None:
    return next(iter(sorted(folder().glob(f"sglang-{version}-*.whl"))), None)


@retry(stop=stop_after_attempt(3), wait=wait_fixed(5), reraise=True)
def _download(version: str) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "--dest", str(folder()), f"sglang=={version}"], check=True, timeout=300)
    found = _stored(version)
    assert found is not None, f"pip downloaded no wheel of sglang {version} to {folder()}"
    return found

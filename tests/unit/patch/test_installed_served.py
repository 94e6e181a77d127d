"""Notebook 04 with apply_to "installed": killed while the edited SGLang serves, run again, and nothing of it is left.

The SGLang that is edited is a copy, first on the path of every process started here: there it is what `import sglang`
reads, the installed one. That of the environment itself is copied and never written.
"""

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from stand_in import contents

from wiring.bench.measurement import Measurement
from wiring.errors import WiringError
from wiring.patch.fix_kinds import ApplyTo, Form
from wiring.patch.source import Standing, copy_of, find_tree, status
from wiring.workbook import captured_states as cap
from wiring.workbook.artefacts import Patch, PhaseLayout
from wiring.workbook.case import RECORDED, open_case
from wiring.workbook.execute import execute
from wiring.workbook.live import measure_arms, plain_arm
from wiring.workbook.notebook_job import Order
from wiring.workbook.run_progress import Progress
from wiring.workbook.workbook_run import NOTEBOOKS

REDUCED = Path(__file__).parents[2] / "server" / "reduced.yaml"
TRAINED = (0, 3, 31)
NAME = "04_embedding_capture_patch"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The copy that plays the installed SGLang."""
    copy = copy_of(find_tree(), tmp_path / "site-packages")
    path = [str(copy.package.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    read = "from wiring.patch.source import find_tree; tree = find_tree(); print(tree.package, tree.installed)"
    told = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True).stdout
    assert told.split() == [str(copy.package), "True"]
    return copy


@pytest.fixture
def case(installed, tmp_path):
    """A run folder in which notebook 04 finds what it reads: the plain text measured now, the rest recorded."""
    case = open_case(profile=str(REDUCED), run=str(tmp_path / "run"), measure="live")
    case.write("01_measured", measure_arms(case, [plain_arm(case, "01")], prompts=case.profile.capture.prompts))
    for name in ("03_layout.json", "03_as_served.safetensors"):
        shutil.copyfile(RECORDED / "cpu-tiny" / name, case.folder / name)
    return case


def notebook(case):
    """Execute notebook 04 on the installed SGLang, as `wiring run` does."""
    parameters = {"profile": str(REDUCED), "run": str(case.folder), "measure": "live", "apply_to": "installed"}
    output = case.folder / "notebooks" / f"{NAME}.ipynb"
    order = Order(str(NOTEBOOKS / f"{NAME}.ipynb"), str(output), parameters, str(NOTEBOOKS), 900)
    execute(order, case.logs() / f"{NAME}.log", Progress())


def of_the_notebook():
    """The command lines of the kernel and of what it has started, by process, among the descendants of this one."""
    ours = {process.pid for process in psutil.Process().children(recursive=True)}
    told = {p: " ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"]) if p.pid in ours}
    return {p: line for p, line in told.items() if any(w in line for w in ("ipykernel", "wiring.server", "sglang"))}


def notebook_killed_while_it_serves(case):
    """As `notebook`, with a SIGKILL of the kernel in the moment when its server with the edited files is up."""
    log = case.logs() / "capture-04_source.log"
    with ThreadPoolExecutor(1) as pool:
        ran = pool.submit(notebook, case)
        while not (log.exists() and "The server is fired up" in log.read_text(errors="replace")):
            assert not ran.done(), ran.exception()
            time.sleep(0.05)
        (kernel,) = [process for process, line in of_the_notebook().items() if "ipykernel" in line]
        kernel.kill()
        with pytest.raises(WiringError, match="kernel died"):
            ran.result(timeout=120)


@pytest.mark.server
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_killed_proof_is_taken_back_by_the_next_which_holds_and_leaves_every_file_as_it_was(installed, case):
    before = contents(find_tree().package)  # of the environment's own
    assert contents(installed.package) == before

    notebook_killed_while_it_serves(case)
    now, standing = contents(installed.package), status(installed)
    edited = {path for path, digest in before.items() if now[path] != digest}
    assert edited == set(standing.files) and "srt/models/deepseek_v2.py" in edited
    assert standing.standing is Standing.APPLIED and "for_a_while" in standing.record["plan"]
    assert of_the_notebook() == {}

    notebook(case)
    proved = Patch.model_validate_json((case.folder / "04_patch.json").read_bytes())
    assert proved.applied_to is ApplyTo.INSTALLED and proved.source == "live"
    assert [one for one in proved.conclusions if not one.holds] == []
    assert {row.form for row in proved.cures} == set(Form)
    plain = case.read("01_measured", Measurement).arm("plain")
    for row in proved.cures:
        assert row.captured == PhaseLayout(prefill=TRAINED, verify=TRAINED, draft_extend=TRAINED)
        assert row.embedding_rows_bit_equal == row.embedding_rows > 0
        for trial, request in zip(plain, cap.load(case.folder / f"04_{row.form}.safetensors"), strict=True):
            assert len(request.output_ids) == case.profile.capture.new_tokens
            assert request.output_ids == trial.output_ids[: len(request.output_ids)]

    assert contents(installed.package) == before == contents(find_tree().package)
    assert status(installed).standing is Standing.NONE and not list((case.folder / "scratch").iterdir())

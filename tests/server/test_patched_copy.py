"""The source fix on the CPU server: the patched copy of SGLang serves the trained layout in every phase."""

import hashlib
from pathlib import Path

import pytest

from wiring.capture.matching import Norm
from wiring.checkpoints.target_files import final_norm, read_target_config
from wiring.checkpoints.tensor_files import read_json
from wiring.engines.resolve import served_layout
from wiring.layers import Phase
from wiring.patch.fix_kinds import FixKind
from wiring.patch.source import find_tree
from wiring.workbook import captured_states as cap
from wiring.workbook.captured_accuracy import compare_phases
from wiring.workbook.case import open_case
from wiring.workbook.evaluate import load_reference
from wiring.workbook.fixes import applied, plan_for

REDUCED = Path(__file__).with_name("reduced.yaml")
TRAINED = (0, 3, 31)


def digests(package):
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in package.rglob("*.py")}


@pytest.mark.server
@pytest.mark.long
def test_the_patched_copy_serves_the_trained_layout_and_the_installed_package_does_not(tmp_path):
    case = open_case(profile=str(REDUCED), run=str(tmp_path / "run"), measure="live")
    installed = find_tree()
    before = digests(installed.package)
    with applied(case, plan_for(case).fix(FixKind.SOURCE)) as made:
        config = read_json(made.draft / "config.json", "the copy's config")
        states = cap.capture(case, "04_source", made.draft, env=made.environment, sglang=made.sglang)
    weight, eps = final_norm(case.profile.target)
    phases = compare_phases(states, load_reference(case), Norm(weight, eps))
    assert {phase: one.layout for phase, one in phases.items()} == dict.fromkeys(Phase, TRAINED)
    by_rule = served_layout("sglang", installed.version, read_target_config(case.profile.target).raw, config)
    assert TRAINED not in {by_rule[phase] for phase in Phase}  # the control: the same draft without the edits
    assert not made.folder.exists() and digests(installed.package) == before

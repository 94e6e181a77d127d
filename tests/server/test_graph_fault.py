"""Bug 2, CUDA graphs that ignore the draft's layer ids, simulated on the CPU server: notebook 03 and the plan of fixes.

The fault is a separate SGLang plugin (`graph_fault_plugin/`), switched on by an environment variable of that server.
"""

import os
from pathlib import Path

import pytest
from graph_fault_plugin.planted_graph_fault import SWITCH
from stand_in import know_the_stand_in, write_tree

from wiring.capture.matching import Norm
from wiring.checkpoints.target_files import final_norm, read_target_config
from wiring.checkpoints.tensor_files import read_json
from wiring.engines.resolve import served_layout
from wiring.layers import Phase
from wiring.patch.copies import apply_fix
from wiring.patch.fix_kinds import FixKind
from wiring.patch.plan import plan_fixes
from wiring.workbook import captured_states as cap
from wiring.workbook.captured_accuracy import compare_phases, phase_differences
from wiring.workbook.case import open_case
from wiring.workbook.evaluate import load_reference

REDUCED = Path(__file__).with_name("reduced.yaml")
PLANTED = Path(__file__).parent / "graph_fault_plugin"
TRAINED, DEFAULT = (0, 3, 31), (2, 30, 58)  # of 61 layers


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return open_case(profile=str(REDUCED), run=str(tmp_path_factory.mktemp("run")), measure="live")


@pytest.fixture(scope="module")
def configs(case):
    draft = read_json(case.profile.draft / "config.json", "the draft's config")
    return read_target_config(case.profile.target).raw, draft


@pytest.fixture(scope="module")
def comparisons(case, configs, tmp_path_factory):
    """Compare each captured phase with the reference, as notebook 03 does; the config requests the trained layout."""
    installed = tmp_path_factory.mktemp("planted")
    information = installed / "planted_graph_fault-0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: planted-graph-fault\nVersion: 0\n")
    entry = "[sglang.srt.plugins]\nplanted_graph_fault = planted_graph_fault:plugin\n"
    (information / "entry_points.txt").write_text(entry)
    (config, *_) = plan_fixes("0.5.23", *configs, TRAINED).fixes
    assert config.form is FixKind.CONFIG
    copy = apply_fix(case.profile.draft, config, installed / "draft", TRAINED)
    path = [str(installed), str(PLANTED), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(path))
        states = cap.capture(case, "03_as_served", copy.draft, env={SWITCH: "1"})
    weight, eps = final_norm(case.profile.target)
    return compare_phases(states, load_reference(case), Norm(weight, eps))


@pytest.mark.server
@pytest.mark.long
def test_prefill_is_fed_the_drafts_layers_and_verify_the_default_ones(comparisons, configs):
    layouts = {phase: one.layout for phase, one in comparisons.items()}
    assert layouts == {Phase.PREFILL: TRAINED, Phase.VERIFY: DEFAULT, Phase.DRAFT_EXTEND: DEFAULT}
    by_rule = served_layout("sglang", "0.5.9", *configs)  # a release with this bug
    assert {layouts[phase] for phase in (Phase.VERIFY, Phase.DRAFT_EXTEND)} == {by_rule.verify, by_rule.draft_extend}


@pytest.mark.server
@pytest.mark.long
def test_the_difference_is_named_in_the_phases_that_have_it_and_in_no_other(comparisons):
    differences = phase_differences(TRAINED, comparisons, 61)
    assert differences[Phase.PREFILL].kinds == ()
    for phase in (Phase.VERIFY, Phase.DRAFT_EXTEND):
        assert differences[phase].kinds == (1,) and str(DEFAULT) in differences[phase].text


@pytest.mark.parametrize("wanted", [TRAINED, (3, 31, 50)])
def test_for_a_release_with_the_bug_the_advice_names_both_edits(configs, tmp_path, monkeypatch, wanted):
    """With the embedding there are two edits, without it only that of the graphs."""
    know_the_stand_in(monkeypatch)
    plan = plan_fixes("0.5.9", *configs, wanted, tree=write_tree(tmp_path, version="0.5.9"))
    assert plan.now.prefill != plan.now.verify == DEFAULT
    (cure,) = plan.fixes
    assert cure.form is FixKind.SOURCE and {"graph", "order", "dummy"} <= {edit.site.name for edit in cure.edits}
    assert ("deepseek_v2.py" in plan.advice) is (0 in wanted)
    assert "cuda_graph_runner.py" in plan.advice and "_dummy_run" in plan.advice
    assert len(cure.notes) == 1 and "also without -1" in cure.notes[0]

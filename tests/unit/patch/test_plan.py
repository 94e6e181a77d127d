"""Which cure does for which release: expected by hand from the version matrix of SGLang's DeepSeek and Llama models."""

import pytest

from wiring.errors import WiringError
from wiring.layers import Phase
from wiring.patch.fix_kinds import FixKind
from wiring.patch.plan import plan_fixes
from wiring.patch.source import find_tree

EVERY = tuple(Phase)
CASE = (0, 3, 31)


def planned(version, wanted=CASE, architecture="DeepseekV3ForCausalLM", ids=(3, 31, 59), **settings):
    target = {"architectures": [architecture], "num_hidden_layers": 61, "hidden_size": 64, "vocab_size": 192}
    draft = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(ids)}}
    return plan_fixes(version, target, draft, wanted, **settings)


def forms(plan):
    return {cure.form: cure.ids for cure in plan.fixes}


def test_on_the_supported_release_all_three_forms_do_and_config_comes_first():
    plan = planned("0.5.23", tree=find_tree())
    assert [cure.form for cure in plan.fixes] == [FixKind.CONFIG, FixKind.PLUGIN, FixKind.SOURCE]
    assert forms(plan) == {FixKind.CONFIG: CASE, FixKind.PLUGIN: (-1, 2, 30), FixKind.SOURCE: (-1, 2, 30)}
    assert all(cure.phases == EVERY and cure.served.verify == CASE for cure in plan.fixes)
    assert [edit.site.name for edit in plan.fixes[2].edits] == ["setter"]
    assert plan.advice.startswith("config: eagle_aux_hidden_state_layer_ids [0, 3, 31]")
    assert "config suffices too and changes less" in plan.fixes[1].reason
    assert not any(cure.notes for cure in plan.fixes)  # its graphs hold the ids of every draft already


@pytest.mark.parametrize("version", ["0.5.14", "0.5.16", "0.5.20", "0.5.22"])
def test_from_0_5_14_on_a_config_is_enough(version):
    plan = planned(version)
    assert forms(plan) == {FixKind.CONFIG: CASE}
    assert {s.form: s.reason for s in plan.short} == {
        FixKind.PLUGIN: "the plugin is tested on SGLang 0.5.23 only",
        FixKind.SOURCE: "SGLang's own files were not given (--sglang)",
    }


@pytest.mark.parametrize("version", ["0.5.6", "0.5.9", "0.5.11", "0.5.12.post1", "0.5.13"])
def test_before_it_no_ids_serve_the_embedding(version):
    plan = planned(version)
    assert not plan.fixes and not plan.nothing_to_do
    config = plan.short[0]
    assert config.form is FixKind.CONFIG and Phase.PREFILL not in config.phases
    assert plan.advice.startswith(f"no fix known for SGLang {version}")


def test_graphs_on_default_layers_leave_a_config_half_a_cure():
    plan = planned("0.5.9", wanted=(4, 32, 50))
    assert not plan.fixes
    assert plan.short[0].phases == (Phase.PREFILL,)
    assert "verify keeps (2, 30, 58)" in plan.short[0].reason
    assert forms(planned("0.5.9", wanted=(4, 32, 50), cuda_graphs=False)) == {FixKind.CONFIG: (3, 31, 49)}


def test_output_ids_everywhere_spell_the_embedding_minus_one():
    assert forms(planned("0.5.23", architecture="LlamaForCausalLM")) == {FixKind.CONFIG: (-1, 2, 30)}
    assert forms(planned("0.5.23", architecture="Qwen3ForCausalLM")) == {FixKind.CONFIG: (-1, 2, 30)}


def test_what_is_served_already_needs_nothing():
    plan = planned("0.5.23", wanted=(3, 31, 59))
    assert plan.nothing_to_do and not plan.fixes and plan.advice.startswith("nothing to do")


@pytest.mark.parametrize("wanted", [(3, 0, 31), (0, 3, 3)])
def test_what_sglang_cannot_capture_is_to_be_retrained(wanted):
    plan = planned("0.5.23", wanted=wanted)
    assert not plan.fixes and "no fix known" in plan.advice and "retrain" in plan.advice


def test_a_boundary_that_does_not_exist_is_an_error():
    with pytest.raises(WiringError) as error:
        planned("0.5.23", wanted=(0, 3, 62))
    assert error.value.found == "62"


def test_a_fix_is_chosen_by_its_kind_and_by_default_the_first():
    plan = planned("0.5.23", tree=find_tree())
    assert [plan.fix(form).form for form in ("", *FixKind)] == [FixKind.CONFIG, *FixKind]
    for call, code in (
        (lambda: plan.fix("sources"), "no-such-form"),
        (lambda: planned("0.5.10").fix("config"), "no-fix"),
        (lambda: planned("0.5.23", (31, 0, 3)).fix(), "no-fix"),
    ):
        with pytest.raises(WiringError) as error:
            call()
        assert error.value.code == code

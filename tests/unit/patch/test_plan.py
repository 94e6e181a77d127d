"""Which cure does for which release: expected by hand from the version matrix of SGLang's DeepSeek and Llama models."""

import pytest

from wiring.errors import WiringError
from wiring.layers import Phase
from wiring.patch.fix_kinds import Form
from wiring.patch.plan import plan_cures
from wiring.patch.source import find_tree

EVERY = tuple(Phase)
CASE = (0, 3, 31)


def planned(version, wanted=CASE, architecture="DeepseekV3ForCausalLM", ids=(3, 31, 59), **settings):
    target = {"architectures": [architecture], "num_hidden_layers": 61, "hidden_size": 64, "vocab_size": 192}
    draft = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(ids)}}
    return plan_cures(version, target, draft, wanted, **settings)


def forms(plan):
    return {cure.form: cure.ids for cure in plan.cures}


def test_on_the_supported_release_all_three_forms_do_and_config_comes_first():
    plan = planned("0.5.23", tree=find_tree())
    assert [cure.form for cure in plan.cures] == [Form.CONFIG, Form.PLUGIN, Form.SOURCE]
    assert forms(plan) == {Form.CONFIG: CASE, Form.PLUGIN: (-1, 2, 30), Form.SOURCE: (-1, 2, 30)}
    assert all(cure.phases == EVERY and cure.served.verify == CASE for cure in plan.cures)
    assert [edit.site.name for edit in plan.cures[2].edits] == ["setter"]
    assert plan.advice.startswith("config: eagle_aux_hidden_state_layer_ids [0, 3, 31]")
    assert "config does it with less" in plan.cures[1].reason
    assert not any(cure.notes for cure in plan.cures)  # its graphs hold the ids of every draft already


@pytest.mark.parametrize("version", ["0.5.14", "0.5.16", "0.5.20", "0.5.22"])
def test_from_0_5_14_on_a_config_is_enough(version):
    plan = planned(version)
    assert forms(plan) == {Form.CONFIG: CASE}
    assert {s.form: s.reason for s in plan.short} == {
        Form.PLUGIN: "the plugin is proven on SGLang 0.5.23 alone",
        Form.SOURCE: "SGLang's own files are not at hand (--sglang)",
    }


@pytest.mark.parametrize("version", ["0.5.6", "0.5.9", "0.5.11", "0.5.12.post1", "0.5.13"])
def test_before_it_no_ids_serve_the_embedding(version):
    plan = planned(version)
    assert not plan.cures and not plan.nothing_to_do
    config = plan.short[0]
    assert config.form is Form.CONFIG and Phase.PREFILL not in config.phases
    assert plan.advice.startswith(f"no cure known for SGLang {version}")


def test_graphs_on_default_layers_leave_a_config_half_a_cure():
    plan = planned("0.5.9", wanted=(4, 32, 50))
    assert not plan.cures
    assert plan.short[0].phases == (Phase.PREFILL,)
    assert "verify keeps (2, 30, 58)" in plan.short[0].reason
    assert forms(planned("0.5.9", wanted=(4, 32, 50), cuda_graphs=False)) == {Form.CONFIG: (3, 31, 49)}


def test_output_ids_everywhere_spell_the_embedding_minus_one():
    assert forms(planned("0.5.23", architecture="LlamaForCausalLM")) == {Form.CONFIG: (-1, 2, 30)}
    assert forms(planned("0.5.23", architecture="Qwen3ForCausalLM")) == {Form.CONFIG: (-1, 2, 30)}


def test_what_is_served_already_needs_nothing():
    plan = planned("0.5.23", wanted=(3, 31, 59))
    assert plan.nothing_to_do and not plan.cures and plan.advice.startswith("nothing to do")


@pytest.mark.parametrize("wanted", [(3, 0, 31), (0, 3, 3)])
def test_what_sglang_cannot_capture_is_to_be_retrained(wanted):
    plan = planned("0.5.23", wanted=wanted)
    assert not plan.cures and "no cure known" in plan.advice and "retrain" in plan.advice


def test_a_boundary_that_is_not_there_is_an_error():
    with pytest.raises(WiringError, match="boundary 62 does not exist"):
        planned("0.5.23", wanted=(0, 3, 62))


def test_a_cure_is_chosen_by_its_form_and_by_default_the_first():
    plan = planned("0.5.23", tree=find_tree())
    assert [plan.cure(form).form for form in ("", *Form)] == [Form.CONFIG, *Form]
    with pytest.raises(WiringError, match="--form: no such form .expected config, plugin, source, found sources"):
        plan.cure("sources")
    with pytest.raises(WiringError, match="the config form does not do here.*no ids make this release serve"):
        planned("0.5.10").cure("config")
    with pytest.raises(WiringError, match="no cure is known.*retrain with slots"):
        planned("0.5.23", (31, 0, 3)).cure()

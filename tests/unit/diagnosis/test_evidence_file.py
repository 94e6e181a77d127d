"""Evidence files as people write them by hand: what is wrong is told by file and field, with the mend."""

import codecs
import json
from functools import partial
from itertools import product

import pytest

from wiring.diagnosis.evidence_file import read_evidence
from wiring.diagnosis.verdict import diagnose
from wiring.errors import WiringError
from wiring.logs.evidence import Evidence

CONFIG_FIELDS = (
    "architectures",
    "num_hidden_layers",
    "text_config",
    "llm_config",
    "eagle_config",
    "num_aux_hidden_states",
    "vocab_size",
    "draft_vocab_size",
    "eagle_aux_hidden_state_layer_ids",
    "quantization_config",
    "model_type",
)
TARGET = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32}
FACTS = [
    {"source": "s", "letter": "L", "name": "map_present", "value": False},
    {"source": "s", "letter": "L", "name": "load_quantisation", "value": "fp8"},
]


@pytest.fixture
def call(wiring_call):
    return partial(wiring_call, "diagnose")


@pytest.fixture
def refused(tmp_path):
    """Write a file, read it, and give what was said."""

    def read(content):
        path = tmp_path / "e.json"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(WiringError) as told:
            read_evidence(path)
        assert "e.json" in told.value.where
        return told.value

    return read


def test_a_config_that_no_rule_could_read_is_refused_by_field(call, tmp_path):
    setting = {
        "engine": "sglang",
        "version": "0.5.23",
        "draft_config": {"eagle_config": "no"},
        "target_config": {"num_hidden_layers": "sixty"},
    }
    path = tmp_path / "e.json"
    path.write_text(json.dumps({"setting": setting}))
    status, out, err = call(path, "--json")
    assert status == 2 and "e.json, field setting.draft_config: eagle_config is an object, not 'no'" in err
    assert "setting.draft_config" in json.loads(out)["error"]["where"]
    setting["draft_config"] = {}
    path.write_text(json.dumps({"setting": setting}))
    status, out, err = call(path, "--json")
    assert status == 2 and "e.json, field setting.target_config: num_hidden_layers is a whole number from 1" in err
    assert "'sixty'" in json.loads(out)["error"]["problem"]


def test_within_the_config_of_a_wrapped_model_the_field_is_named_whole(refused):
    told = refused('{"setting": {"target_config": {"text_config": {"num_hidden_layers": 0}}}}')
    assert "text_config.num_hidden_layers is a whole number from 1, not 0" in told.problem


@pytest.mark.parametrize("engine", ["sglang", "vllm", "tensorrt-llm"])
def test_whatever_stands_in_a_config_is_weighed_or_refused(tmp_path, engine):
    path = tmp_path / "e.json"
    values = ("no", 3, 0, -1, 2.5, True, None, [], ["a"], [1, 2, 3], {}, {"a": 1}, [None], [[1]])
    weighed = 0
    for side, name, value, nest in product(
        ("draft", "target"), CONFIG_FIELDS, values, ("", "text_config", "eagle_config")
    ):
        setting = {"engine": engine, "trained_layout": [2, 16, 29], "target_config": dict(TARGET), "draft_config": {}}
        setting[f"{side}_config"] |= {nest: {name: value}} if nest else {name: value}
        path.write_text(json.dumps({"setting": setting, "facts": FACTS}))
        try:
            evidence = read_evidence(path)
        except WiringError:
            continue
        diagnose(evidence)
        weighed += 1
    assert weighed > 100


def test_a_key_that_stands_twice_is_refused(refused):
    told = refused('{"acceptance": [{"source": "a", "accept_length": 1.1, "accept_length": 2.2}]}')
    assert told.problem == "the key accept_length stands twice in one object" and told.found == "1.1 and 2.2"
    assert "the key log stands twice" in refused('{"log": [], "log": []}').problem


def test_text_of_another_encoding_is_told_and_a_mark_is_not_minded(refused, tmp_path):
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        told = refused('{"name": "a"}'.encode(encoding))
        assert told.problem == "the evidence is not text in UTF-8" and told.found.startswith(encoding.upper()[:6])
    assert refused(b" \n").problem == "the evidence file is empty"
    (tmp_path / "marked.json").write_bytes(codecs.BOM_UTF8 + '{"name": "ä"}'.encode())
    assert read_evidence(tmp_path / "marked.json") == Evidence(name="ä")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"acceptence": []}', "did you mean acceptance"),
        ('{"acceptance": [{"source": "a", "accept_lenght": 2}]}', "did you mean accept_length"),
        ('{"setting": {"drafts_tokens": 4}}', "did you mean draft_tokens"),
        ('{"qqq": 1}', "unknown field; there are schema_version, name, setting"),
    ],
)
def test_a_misspelt_field_is_told_with_the_one_it_may_be(refused, text, told):
    assert told in refused(text).problem


def test_lints_notes_are_taken_as_lint_prints_them(refused):
    row = {"source": "lint", "kind": 0, "severity": "note", "evidence": "ids are boundaries as they stand"}
    assert diagnose(Evidence.model_validate({"lint": [row]})).symptoms == ()
    assert "kind 0 is a note, not an error" in str(refused(json.dumps({"lint": [row | {"severity": "error"}]})))

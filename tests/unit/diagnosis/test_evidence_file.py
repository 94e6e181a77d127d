"""Evidence files as people write them by hand: a wrong one is refused with its file and field."""

import codecs
import json
from itertools import product

import pytest

from wiring.diagnosis.evidence_file import read_evidence
from wiring.diagnosis.verdict import diagnose
from wiring.errors import WiringError
from wiring.logs.evidence import Evidence

TARGET = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32}
FACTS = [
    {"source": "s", "letter": "L", "name": "map_present", "value": False},
    {"source": "s", "letter": "L", "name": "load_quantisation", "value": "fp8"},
]
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


@pytest.fixture
def refused(tmp_path):
    """Write a file, read it, and return the error."""

    def read(content):
        path = tmp_path / "e.json"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        with pytest.raises(WiringError) as error:
            read_evidence(path)
        assert str(error.value.where).startswith(str(path))
        return error.value

    return read


def record(**fields):
    return {"acceptance": [{"source": "a", **fields}]}


def fact(**fields):
    return {"facts": [{"source": "a", "letter": "P", **fields}]}


def configs(**fields):
    return {"setting": {"target_config": fields}}


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (record(accept_length="many"), "acceptance.0.accept_length"),
        ({"acceptance": [{"accept_length": 2}]}, "acceptance.0.source"),
        (record(condition={"moon": 1}), "acceptance.0.condition"),
        (record(condition={"batch": "many"}), "acceptance.0.condition"),
        (record(condition={"cached": 1}), "acceptance.0.condition"),
        (record(by_position=[1.2]), "acceptance.0.by_position.0"),
        (fact(name="moon", value=1), "facts.0.name"),
        (fact(name="text_broken", value="yes"), "facts.0"),
        (fact(name="draft_departs_at", value="somewhere"), "facts.0"),
        ({"lint": [{"source": "l", "kind": 0, "severity": "error", "evidence": "e"}]}, "lint.0"),
        ({"schema_version": 2}, "schema_version"),
        ({"setting": {"draft_config": {"eagle_config": "no"}}}, "setting.draft_config.eagle_config"),
        (configs(num_hidden_layers="sixty"), "setting.target_config.num_hidden_layers"),
        (configs(text_config={"num_hidden_layers": 0}), "setting.target_config.text_config.num_hidden_layers"),
        ({"setting": {"steps": -3}}, "setting.steps"),
        ({"setting": {"batch": 0}}, "setting.batch"),
        ({"setting": {"temperature": -1.0}}, "setting.temperature"),
        ({"setting": {"tp": 0}}, "setting.tp"),
        ({"setting": {"trained_layout": [-1, 3, 31]}}, "setting.trained_layout.0"),
        ({"setting": {"served_layout": {"verify": [-1, 3]}}}, "setting.served_layout.verify.0"),
        *(
            ({"speed": [{"source": "p", "arm": "draft", field: -46.7}]}, f"speed.0.{field}")
            for field in ("tok_per_s", "step_s", "round_s", "round_steps", "speedup")
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_field(refused, content, field):
    error = refused(content)
    assert error.code == "evidence-field-wrong" and str(error.where).endswith(f", field {field}")


@pytest.mark.parametrize(
    ("content", "near"),
    [
        ({"acceptence": []}, "acceptance"),
        (record(accept_lenght=2), "accept_length"),
        ({"setting": {"drafts_tokens": 4}}, "draft_tokens"),
        ({"qqq": 1}, ", ".join(Evidence.model_fields)),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_name(refused, content, near):
    error = refused(content)
    assert (error.code, error.expected) == ("evidence-field-unknown", near)


@pytest.mark.parametrize("content", [b'{"log": ["', b"[]"])
def test_a_file_without_an_object_is_refused(refused, content):
    assert refused(content).code == "evidence-field-wrong"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b'{"acceptance": [{"source": "a", "accept_length": 1.1, "accept_length": 2.2}]}', "1.1 and 2.2"),
        (b'{"log": [], "log": []}', "[] and []"),
    ],
)
def test_a_repeated_key_is_refused(refused, content, found):
    error = refused(content)
    assert (error.code, error.found) == ("evidence-key-twice", found)


def test_other_encodings_are_refused_and_a_byte_order_mark_is_accepted(refused, tmp_path):
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        error = refused('{"name": "a"}'.encode(encoding))
        assert error.code == "evidence-not-utf8" and error.found.startswith(encoding.upper()[:6])
    assert refused(b" \n").code == "evidence-empty"
    (tmp_path / "marked.json").write_bytes(codecs.BOM_UTF8 + '{"name": "ä"}'.encode())
    assert read_evidence(tmp_path / "marked.json") == Evidence(name="ä")


@pytest.mark.parametrize("engine", ["sglang", "vllm", "tensorrt-llm"])
def test_any_config_is_either_weighed_or_refused(tmp_path, engine):
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


def test_notes_of_lint_decide_nothing():
    row = {"source": "lint", "kind": 0, "severity": "note", "evidence": "ids are boundaries as written"}
    assert diagnose(Evidence.model_validate({"lint": [row]})).symptoms == ()

"""One list of ids, interpreted by all trainers and engines: expected layouts by hand from the version matrix."""

from wiring.engines.id_interpretations import CONSUMERS, interpret_ids
from wiring.layers import Phase

TARGET = {"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61, "hidden_size": 64, "vocab_size": 192}


def by_reader(ids, **config):
    draft = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}, **config} if ids else config
    return {row.reader: row for row in interpret_ids(TARGET, draft, ids)}


def test_the_cases_ids_name_other_layers_to_other_programs():
    rows = by_reader([2, 30, 58])
    layouts = {name: row.layouts[Phase.PREFILL] for name, row in rows.items()}
    assert layouts == {
        "SpecForge, Model Optimizer, TorchSpec": (3, 31, 59),
        "SafeAILab, speculators from 0.5 on": (2, 30, 58),
        "sglang==0.5.9": (3, 31, 59),
        "sglang==0.5.12.post1": (3, 31, 59),
        "sglang==0.5.23": (2, 30, 58),  # verbatim since 0.5.13 unless the first id is 1
        "vllm==0.18.0": (2, 30, 58),  # its own default
        "vllm": (2, 30, 58),
        "tensorrt-llm": (2, 30, 58),  # its own default
    }
    graphs = rows["sglang==0.5.9"]
    assert graphs.layouts[Phase.VERIFY] == (2, 30, 58) and "CUDA graphs" in graphs.rule


def test_an_engine_that_fails_has_a_row_that_says_so():
    rows = by_reader([-1, 2, 30])
    assert rows["sglang==0.5.12.post1"].layouts[Phase.PREFILL] is None  # layer 0 has no residual to add
    assert rows["sglang==0.5.23"].layouts[Phase.PREFILL] is None and rows["sglang==0.5.23"].rule


def test_without_ids_there_are_no_rows_of_trainers():
    assert tuple(by_reader(None)) == CONSUMERS

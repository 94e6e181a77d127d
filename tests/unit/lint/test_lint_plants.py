"""One planted fault at a time on the tiny pair: lint reports its fault number and no error of another fault.

Expected layouts are derived by hand from the releases' rules: on this target of 61 layers SGLang 0.5.23 takes ids as
boundaries unless the first is 1 (then id + 1), 0.5.9 always adds 1, and the default is (2, 30, 58) everywhere.
"""

import pytest
import torch
from lint_pairs import IDS, TINY, draft, ids, target
from safetensors.torch import load_file

from wiring.engines.resolve import parse_engine
from wiring.lint import Changed, ServerView, lint

TRAINED = (0, 3, 31)
DEFAULT = (2, 30, 58)
VOCABULARY, ROWS, WIDTH = 192, 88, 64
SPECULATION = {"speculative_num_steps": 5, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 8}


def run(folder, *, engine="sglang==0.5.23", trained=TRAINED, of=TINY / "target", **arguments):
    server = ServerView(arguments) if arguments else None
    return lint(folder, of, parse_engine(engine), trained=trained, server=server)


def reported(result):
    return {(finding.kind, finding.severity) for finding in result.findings}


def assert_only(result, fault):
    """The planted fault is reported as an error, and no other fault is."""
    assert {finding.kind for finding in result.errors} == {fault}, result.findings
    assert all(finding.where and finding.evidence for finding in result.findings)
    assert all(finding.remedy for finding in result.errors)


def phases(result):
    served = result.served
    return None if served is None else (served.prefill, served.verify, served.draft_extend)


def test_the_healthy_pair_has_no_finding(tmp_path):
    result = run(
        draft(tmp_path / "d"),
        speculative_algorithm="EAGLE3",
        speculative_num_steps=5,
        speculative_eagle_topk=1,
        speculative_num_draft_tokens=6,
        dtype="bfloat16",
        tp_size=1,
    )
    assert result.findings == () and result.not_checked == ()
    assert phases(result) == (TRAINED,) * 3
    assert run(draft(tmp_path / "e")).findings == ()


@pytest.mark.parametrize(
    ("config", "drop", "engine", "trained", "served", "kind"),
    [
        (ids(3, 31, 59), (), "sglang==0.5.23", TRAINED, ((3, 31, 59),) * 3, 1),
        (ids(1, 29, 57), (), "sglang==0.5.23", TRAINED, (DEFAULT,) * 3, 1),
        (ids(1, 30, 58), (), "sglang==0.5.23", (1, 30, 58), ((2, 31, 59),) * 3, 2),
        (ids(2, 30, 58), (), "sglang==0.5.12.post1", DEFAULT, ((3, 31, 59),) * 3, 2),
        (ids(4, 32, 60), (), "sglang==0.5.23", (5, 33, 61), ((4, 32, 60),) * 3, 2),
        (ids(31, 0, 3), (), "sglang==0.5.23", (31, 0, 3), (TRAINED,) * 3, 3),
        ({IDS: [0, 3, 31], "eagle_config": {}}, (), "sglang==0.5.23", TRAINED, (DEFAULT,) * 3, 1),
        ({}, ("eagle_config",), "sglang==0.5.23", TRAINED, (DEFAULT,) * 3, 1),
        (ids(2, 30, 58), (), "vllm", (3, 31, 59), (DEFAULT,) * 3, 2),
        ({}, (), "tensorrt-llm", TRAINED, (DEFAULT,) * 3, 1),
    ],
)
def test_a_layout_that_is_not_the_trained_one(tmp_path, config, drop, engine, trained, served, kind):
    result = run(draft(tmp_path / "d", config, drop=drop), engine=engine, trained=trained)
    assert phases(result) == served
    assert_only(result, kind)
    assert len([f for f in result.errors if str(trained) in f.evidence and str(served[0]) in f.evidence]) == 1


@pytest.mark.parametrize(
    ("layer_ids", "engine"),
    [
        ((3, 3, 31), "sglang==0.5.23"),
        ((-1, 2, 30), "sglang==0.5.23"),
        ((3, 31, 61), "sglang==0.5.23"),
        ((0, 3, 31), "sglang==0.5.13"),
    ],
)
def test_ids_with_which_the_server_fails(tmp_path, layer_ids, engine):
    """Only two of three states are captured; in 0.5.13 the residual before layer 0 is None."""
    result = run(draft(tmp_path / "d", ids(*layer_ids)), engine=engine)
    assert phases(result) == (None,) * 3
    assert_only(result, 3)


def test_verify_on_default_layers_under_cuda_graphs(tmp_path):
    folder = draft(tmp_path / "d", ids(2, 30, 57))
    result = run(folder, engine="sglang==0.5.9", trained=(3, 31, 58))
    assert phases(result) == ((3, 31, 58), DEFAULT, DEFAULT)
    assert_only(result, 1)
    assert all("verify" in finding.where for finding in result.errors)
    eager = run(folder, engine="sglang==0.5.9", trained=(3, 31, 58), disable_cuda_graph=True)
    assert phases(eager) == ((3, 31, 58),) * 3 and eager.findings == ()


def test_the_embedding_asked_of_a_release_that_cannot(tmp_path):
    result = run(draft(tmp_path / "d", ids(-1, 2, 30)), engine="sglang==0.5.9")
    assert phases(result) == (None, DEFAULT, DEFAULT)
    assert any("TypeError" in finding.evidence for finding in result.errors)


def fc_of_four(tensors):
    tensors["fc.weight"] = torch.cat([tensors["fc.weight"], tensors["fc.weight"][:, :WIDTH]], 1)


def reached(tensors):
    return torch.arange(ROWS) + tensors["d2t"]


def shuffled(tensors):
    order = reached(tensors)[torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))]
    tensors["d2t"] = order - torch.arange(ROWS)


def twice(tensors):
    tensors["d2t"][5] = tensors["d2t"][4] - 1
    del tensors["t2d"]


def first_slice(tensors):
    tensors["d2t"] = torch.zeros(ROWS, dtype=torch.int64)
    tensors["t2d"] = torch.arange(VOCABULARY) < ROWS


def unmarked(tensors):
    tensors["t2d"][int(reached(tensors)[7])] = False


def without_t2d(name):
    def edit(tensors):
        tensors["d2t"] = reached(tensors) if name == "absolute" else tensors["d2t"] + 100
        del tensors["t2d"]

    return edit


@pytest.mark.parametrize(
    ("edit", "tensor", "evidence"),
    [
        (lambda t: t.update(d2t=reached(t)), "d2t", "target ids, not offsets"),
        (without_t2d("absolute"), "d2t", "0 to 191"),
        (without_t2d("too far"), "d2t", "0 to 191"),
        (lambda t: t.update(d2t=torch.arange(ROWS)), "d2t", "0, 1, 2, ... 87"),
        (lambda t: t.update(d2t=torch.zeros(ROWS, dtype=torch.int64)), "d2t", "0 to 87"),
        (first_slice, "d2t", "0 to 87"),
        (shuffled, "d2t", "draft ids"),
        (twice, "d2t", "only 87"),
        (lambda t: t.update(t2d=t["t2d"].roll(1)), "d2t", "by 1"),
        (unmarked, "d2t", "1 target id"),
        (lambda t: t.pop("d2t"), "d2t", "88 of 192"),
        (lambda t: t.update(d2t=t["d2t"][:-1]), "d2t", "[87], expected [88]"),
        (lambda t: t.update(t2d=t["t2d"][:-2]), "t2d", "[190], expected [192]"),
        (lambda t: t.update(d2t=t["d2t"] + 0.5), "d2t", "fractions"),
        (lambda t: t.update({"lm_head.weight": t["lm_head.weight"][:80]}), "lm_head.weight", "80 rows"),
    ],
)
def test_vocabulary_maps(tmp_path, edit, tensor, evidence):
    result = run(draft(tmp_path / "d", edit=edit))
    assert_only(result, 9)
    (finding,) = result.errors
    assert finding.where.endswith(f": tensor {tensor}") and evidence in finding.evidence


def norms_of_slots(tensors):
    tensors |= {f"fc_norm.{i}.weight": torch.ones(WIDTH) for i in range(3)}


def biases(tensors):
    tensors |= {f"midlayer.self_attn.{n}_proj.bias": torch.ones(128) for n in "qkv"}
    tensors["midlayer.self_attn.o_proj.bias"] = torch.ones(WIDTH)


def second_layer(tensors):
    tensors |= {n.replace("midlayer", "layers.1"): t.clone() for n, t in tensors.items() if n.startswith("midlayer")}


def own_embedding(change):
    rows = load_file(TINY / "target" / "model.safetensors")["model.embed_tokens.weight"]
    noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(2))
    made = {"same": rows, "rounded": rows.half(), "random": noise, "trained": rows + 0.5 * rows.float().std() * noise}
    return lambda tensors: tensors.update({"embed_tokens.weight": made[change].clone()})


LATER = (3, 31, 59)  # vLLM's DeepSeek cannot capture the embedding


def whole_head(change="random"):
    """A head over the whole vocabulary, without maps."""

    def edit(tensors):
        head = load_file(TINY / "target" / "model.safetensors")["lm_head.weight"]
        noise = torch.randn(VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(3))
        tensors["lm_head.weight"] = head if change == "same" else noise
        del tensors["d2t"], tensors["t2d"]

    return edit


def add(**tensors):
    """Add tensors, with __ for the dots of their names."""
    return lambda held: held.update({name.replace("__", "."): tensor for name, tensor in tensors.items()})


def eight_bits(tensors):
    tensors["midlayer.mlp.up_proj.weight"] = tensors["midlayer.mlp.up_proj.weight"].to(torch.float8_e4m3fn)


FOUR = (0, 3, 31, 59)
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
LINEAR, YARN = {"rope_type": "linear", "factor": 2.0}, {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4}
SCALED = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}  # as the tiny target
SHORT = {"max_position_embeddings": 512}
ON_VLLM = {"engine": "vllm", "trained": LATER}
PLANTS = [
    # (fault and severity, "" if healthy; changes of the draft and of the run)
    ("3 error", {"edit": fc_of_four}),
    ("3 error", {"edit": fc_of_four, "of": None}),
    ("3 error", {"config": {"num_aux_hidden_states": 4}}),
    ("3 error", {"edit": lambda t: t.update({"fc.weight": t["fc.weight"][:, :-5]})}),
    ("", {"config": ids(*FOUR), "edit": fc_of_four, "trained": FOUR}),
    ("3 error", {"config": ids(*FOUR), "edit": fc_of_four, "trained": FOUR, "engine": "sglang==0.5.11"}),  # fc of three
    ("9 error", {"target": {"vocab_size": 200}}),
    ("3 error", {"target": {"hidden_size": 128}}),
    # the forward pass
    ("10 error", {"config": {"norm_before_residual": True}}),
    ("10 error", {"edit": norms_of_slots}),
    ("10 error", {"edit": add(input_norm__weight=torch.ones(3 * WIDTH))}),
    ("10 error", {"config": {"attention_bias": True}, "edit": biases}),
    ("10 error", {"edit": second_layer}),
    ("10 error", {"edit": lambda t: t.pop("midlayer.mlp.up_proj.weight")}),
    ("10 error", {"config": {"fc_norm": True}}),
    ("10 error", {"edit": add(midlayer__self_attn__q_norm__weight=torch.ones(32))}),
    ("10 error", {"config": {"hidden_act": "gelu"}}),
    ("10 warning", {"edit": add(leftover__weight=torch.ones(3))}),
    ("10 warning", {"config": {"norm_output": True}}),
    ("", {"edit": add(midlayer__self_attn__rotary_emb__inv_freq=torch.ones(16))}),  # computed, never read
    ("19 error", {"edit": lambda t: t["norm.weight"].fill_(float("inf"))}),
    # embedding and head
    ("", {"edit": own_embedding("same")}),
    ("", {"edit": own_embedding("rounded")}),
    ("8 error", {"edit": own_embedding("random")}),
    ("8 error", {"edit": own_embedding("trained")}),
    ("8 error", {"edit": add(embed_tokens__weight=torch.full((VOCABULARY, WIDTH), float("nan")))}),
    ("", {"config": ids(*LATER), "edit": own_embedding("same"), **ON_VLLM}),
    ("", {"config": ids(*LATER), "edit": own_embedding("rounded"), **ON_VLLM}),
    ("8 error", {"config": ids(*LATER), "edit": own_embedding("random"), **ON_VLLM}),
    ("", {"config": ids(*LATER), "edit": own_embedding("trained"), **ON_VLLM}),  # vLLM keeps it
    ("8 error", {"config": {"draft_vocab_size": None}, "edit": whole_head()}),
    ("", {"config": {"draft_vocab_size": None}, "edit": whole_head("same")}),
    ("", {"config": {"draft_vocab_size": VOCABULARY}, "edit": whole_head()}),
    # RoPE and context
    ("13 warning", {"config": {"rope_theta": 1e6}}),
    ("13 error", {"config": SHORT}),
    ("", {"config": SHORT, "context_length": 512}),
    ("13 warning", {"config": SHORT | ids(*LATER), **ON_VLLM}),
    ("13 warning", {"config": {"rope_scaling": LINEAR, "rope_parameters": YARN, "max_position_embeddings": 2048}}),
    ("13 warning", {"config": {"sliding_window": 256}}),
    ("13 error", {"config": {"rope_scaling": LINEAR | {"factor": 2}, "max_position_embeddings": 2048}}),
    ("", {"config": {"rope_scaling": SCALED}}),
    ("13 warning", {"config": {"rope_scaling": SCALED | {"factor": 40.0}}}),
    ("13 warning", {"config": {"rope_scaling": SCALED}, "target": {"rope_parameters": {"rope_type": "default"}}}),
    # number formats
    ("", {"target": {"quantization_config": FP8}}),
    ("11 error", {"config": {"quantization_config": FP8}, "target": {"quantization_config": FP8}}),
    ("11 error", {"config": {"quantization_config": FP8}}),
    ("11 error", {"edit": eight_bits}),
    ("11 warning", {"quantization": "fp8"}),
    ("", {"quantization": "fp8", "speculative_draft_model_quantization": "unquant"}),
    ("11 warning", {"config": {"torch_dtype": "float16"}}),
    ("", {"config": {"torch_dtype": "float16"}, "dtype": "bfloat16"}),
    ("11 warning", {"drop": ("torch_dtype",)}),  # SGLang chooses float16
    ("12 warning", {"kv_cache_dtype": "fp8_e4m3"}),
    ("", {"kv_cache_dtype": "fp8_e4m3", "speculative_draft_kv_cache_dtype": "bf16"}),
    # algorithm and architecture
    ("7 error", {"speculative_algorithm": "EAGLE"}),
    ("", {"speculative_algorithm": "EAGLE3"}),
    ("7 warning", {"speculative_algorithm": None}),
    ("7 error", {"config": {"architectures": ["LlamaForCausalLM"]}}),
    ("7 error", {"config": {"architectures": ["LlamaForCausalLMEagle"]}, "drop": ("eagle_config",), "trained": None}),
    ("21 warning", SPECULATION),
    ("", SPECULATION | {"speculative_eagle_topk": 4}),
    # weights of zeros
    ("23 error", {"edit": lambda t: t["fc.weight"].zero_()}),
    ("23 warning", {"edit": lambda t: t["fc.weight"][:, WIDTH : 2 * WIDTH].zero_()}),
    ("23 warning", {"edit": lambda t: t["midlayer.mlp.up_proj.weight"].zero_()}),
]


@pytest.mark.parametrize(("outcome", "changes"), PLANTS)
def test_a_planted_fault(tmp_path, outcome, changes):
    of_draft = {name: value for name, value in changes.items() if name in ("config", "edit", "drop")}
    of_run = {name: value for name, value in changes.items() if name not in (*of_draft, "target")}
    if "target" in changes:
        of_run["of"] = target(tmp_path / "target", changes["target"])
    result = run(draft(tmp_path / "draft", **of_draft), **of_run)
    fault, _, severity = outcome.partition(" ")
    if severity == "error":
        assert_only(result, int(fault))
    else:
        assert reported(result) == ({(int(fault), severity)} if fault else set())


def test_arguments_that_a_running_server_changed(tmp_path):
    changed = (Changed("draft tokens", 8, 6, "one chain"),)
    running = ServerView(SPECULATION | {"speculative_num_draft_tokens": 6}, running=True, changed=changed)
    folder, engine = draft(tmp_path / "d"), parse_engine("sglang==0.5.23")
    result = lint(folder, TINY / "target", engine, trained=TRAINED, server=running)
    assert reported(result) == {(21, "warning")} and " 8, " in result.findings[0].evidence


@pytest.mark.parametrize(
    ("field", "said", "kind", "least"),
    [
        ("hidden_size", 128, 3, 10),
        ("hidden_size", 32, 3, 10),
        ("intermediate_size", 128, 10, 3),
        ("head_dim", 16, 10, 4),
        ("num_attention_heads", 8, 10, 2),
        ("num_key_value_heads", 2, 10, 2),
    ],
)
def test_one_wrong_size_is_one_finding_that_names_the_tensors(tmp_path, field, said, kind, least):
    right = {"hidden_size": 64, "intermediate_size": 256, "head_dim": 32}.get(field, 4)
    folder = draft(tmp_path / "d", {field: said})
    result = run(folder)
    (finding,) = result.findings
    assert (finding.kind, finding.severity) == (kind, "error") and finding.where == f"{folder / 'config.json'}: {field}"
    assert f"{field} is {said}" in finding.evidence and f"{field} {right}" in finding.remedy
    named = finding.evidence.rpartition(": ")[2].split(", ")
    assert len(named) >= least and all(name.endswith(".weight") for name in named)
    assert phases(result) == (TRAINED,) * 3


def test_other_faults_are_reported_with_a_wrong_size(tmp_path):
    result = run(draft(tmp_path / "d", {"hidden_size": 128}, edit=shuffled))
    assert reported(result) == {(3, "error"), (9, "error")} and len(result.findings) == 2
    # a single tensor of another shape is the wrong one itself, not the config
    result = run(draft(tmp_path / "e", edit=lambda t: t.update({"norm.weight": torch.ones(32)})))
    assert reported(result) == {(10, "error")} and "norm.weight" in result.findings[0].where

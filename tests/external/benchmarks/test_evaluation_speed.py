"""Tokens per second of the evaluation beside the other trainers' own: one draft, one machine, one number of threads.

Every round runs SpecForge, speculators and the workbook one after the other, the peers in processes of their own that
have everything loaded and warm; what counts is the median round. Reading files is part of no one's time. The peers are
spared their loss (SpecForge's is a Triton kernel, which no CPU runs); SpecForge's labels stay what they are in its
training, whole logits of the target with their softmax. The workbook gives each peer's counts, and is held against the
faster peer on that peer's counts. speculators does not say how many labels lie outside the draft's vocabulary, so the
workbook is spared that too. Most of its gain are rows that nobody counts, which it does not finish: the texts are a
prompt of a quarter, not counted, and an answer. Its matrix products alone are timed in the shapes that it multiplies.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from contextlib import ExitStack

import peer_files
import pytest
import torch
from peer_clock import peer_clock
from planted_texts import make_draft_tensors, make_target, make_texts
from torch.utils._python_dispatch import TorchDispatchMode

from wiring.accuracy.evaluation import accuracy_by_depth
from wiring.accuracy.target_head import TargetHead
from wiring.checkpoints.states import StateSample

pytestmark = [
    pytest.mark.benchmark(group="standalone evaluation"),
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(peer_files.why_not()), reason=peer_files.why_not() or "-"),
]

WIDTH, INNER, HEADS, KV_HEADS, HEAD_DIM = 768, 2304, 12, 4, 64
VOCAB, DRAFT_VOCAB = 32_000, 8_000
SEQUENCES, LENGTH, STEPS, ROUNDS = 4, 512, 3, 3
TURNS = (96, 160, 96, 160)  # tokens of a question, its answer, the next question, its answer; answers are trained on
PRESETS = {"specforge": "specforge", "speculators": "speculators-full"}
LAYOUT = (2, 6, 9)
EPS = 1e-5

CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "draft_vocab_size": DRAFT_VOCAB,
    "rms_norm_eps": EPS,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}


@pytest.fixture(scope="module")
def made():
    """The target and the texts: two turns of a chat each."""
    target = make_target(1, VOCAB, WIDTH)
    texts = make_texts(2, target, len(LAYOUT), [LENGTH] * SEQUENCES)
    trained_on = torch.cat([torch.full((turn,), i % 2) for i, turn in enumerate(TURNS)])
    for text in texts:
        text.mask.copy_(trained_on)
    return target, texts


@pytest.fixture(scope="module")
def cases(made, tmp_path_factory):
    """The same draft, target and texts as each peer stores them."""
    target, texts = made
    where = tmp_path_factory.mktemp("speed")
    ids = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(3))[:DRAFT_VOCAB].sort().values
    sizes = dict(width=WIDTH, inner=INNER, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, slots=len(LAYOUT))
    for peer, layer in (("specforge", "midlayer."), ("speculators", "layers.{}.")):
        case = where / peer
        case.mkdir()
        peer_files.write_target(case / "target", target)
        embedding = target.embedding if peer == "speculators" else None
        tensors = make_draft_tensors(4, target, **sizes, ids=ids, layer_name=layer, embedding=embedding)
        settings = {"steps": STEPS, "batch": SEQUENCES, "storage": "sglang", "slots": len(LAYOUT)}
        if peer == "specforge":
            peer_files.write_specforge_states(case / "states", target, texts)
            peer_files.write_draft(case, CONFIG, peer_files.in_bfloat16(tensors), settings)
        else:
            outer = {"draft_vocab_size": DRAFT_VOCAB, "eagle_aux_hidden_state_layer_ids": list(LAYOUT)}
            layer_config = {k: v for k, v in CONFIG.items() if k not in ("architectures", "draft_vocab_size")}
            peer_files.write_speculators_states(case, texts)
            peer_files.write_draft(case, layer_config, tensors, settings | {"speculator": outer})
    return where


def our_pass(case, made, preset):
    """One evaluation of the peer's draft by its counting rule, over samples in memory."""
    from our_side import read_ours

    target, texts = made
    draft, _ = read_ours(case / "draft", case / "target")
    normed = preset == "specforge"
    samples = [
        StateSample(
            source=str(i),
            tokens=text.tokens,
            loss_mask=text.mask,
            states=text.states,
            boundaries=LAYOUT,
            last_hidden=target.normed(text.pre_norm) if normed else text.pre_norm,
            norm="post" if normed else "pre",
        )
        for i, text in enumerate(texts)
    ]
    head = TargetHead(target.head, target.norm, EPS)
    return lambda: accuracy_by_depth(
        draft, samples, LAYOUT, STEPS, head, rule=preset, batch=SEQUENCES, outside_sequences=0
    )


class Products(TorchDispatchMode):
    """Notes the shapes of all matrix products that run inside."""

    def __init__(self):
        super().__init__()
        self.shapes = Counter()

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        name = operation.overloadpacket.__name__
        if name in ("mm", "bmm", "addmm"):
            left, right = arguments[-2:]
            self.shapes[tuple(left.shape), tuple(right.shape)] += 1
        return operation(*arguments, **(keywords or {}))


def products_seconds(once) -> float:
    """Time of the matrix products of one pass and of nothing else; attention in one kernel, as at step 0, is not in."""
    with Products() as noted:
        once()
    total = 0.0
    for (left, right), times in noted.shapes.items():
        a, b = torch.randn(left), torch.randn(*right[:-2], right[-1], right[-2]).mT  # as weights lie in memory
        taken = []
        for _ in range(3):
            began = time.perf_counter()
            torch.matmul(a, b)
            taken.append(time.perf_counter() - began)
        total += times * min(taken)
    return total


def test_the_evaluation_is_twice_as_fast_as_the_faster_peer(benchmark, made, cases, capsys):
    threads = torch.get_num_threads()
    tokens = SEQUENCES * LENGTH
    theirs = {peer: [] for peer in PRESETS}
    ours = {peer: [] for peer in PRESETS}
    with ExitStack() as stack:
        clocks = {
            peer: stack.enter_context(peer_clock(f"{peer}_forward.py", cases / peer, threads)) for peer in PRESETS
        }
        # the peers have written the draft by now, and wait
        passes = {peer: our_pass(cases / peer, made, preset) for peer, preset in PRESETS.items()}
        for once in passes.values():
            once()

        def one_round():
            for peer in PRESETS:
                theirs[peer].append(clocks[peer].seconds())
                began = time.perf_counter()
                passes[peer]()
                ours[peer].append(time.perf_counter() - began)

        benchmark.pedantic(one_round, rounds=ROUNDS)
    median = {"peer": {}, "workbook": {}}
    for peer in PRESETS:
        median["peer"][peer] = statistics.median(theirs[peer])
        median["workbook"][peer] = statistics.median(ours[peer])
    lines = [f"{SEQUENCES} texts of {LENGTH} tokens, {STEPS} steps, {threads} threads, median of {ROUNDS} rounds:"]
    for peer in PRESETS:
        slow, fast, products = median["peer"][peer], median["workbook"][peer], products_seconds(passes[peer])
        lines.append(
            f"  counts of {peer:12} {peer} {tokens / slow:5.0f} tokens/s, workbook {tokens / fast:5.0f} "
            f"({slow / fast:.2f}x): {fast:.2f} s, matrix products alone {products:.2f} s ({products / fast:.0%})"
        )
    benchmark.extra_info.update(report=lines, threads=threads)
    with capsys.disabled():
        print("", *lines, sep="\n")
    faster = min(PRESETS, key=median["peer"].get)
    assert median["peer"][faster] >= 2 * median["workbook"][faster], "\n".join(lines)

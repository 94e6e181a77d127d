"""Whose embedding and head are used: the file's by trainers' code, by the config alone as SGLang serves the file.

What SGLang does is shown on a server by tests/server/test_cpu_draft_variants.py.
"""

import pytest
import torch
from slow_draft import random_tensors, tiny_config

from wiring.checkpoints.draft_config import Eagle3Config
from wiring.checkpoints.draft_files import checkpoint_from
from wiring.errors import WiringError
from wiring.model.eagle3 import Eagle3Draft

G = torch.Generator().manual_seed(3)
OWN, OWN_HEAD, TARGETS, TARGETS_HEAD = (torch.randn(40, 16, generator=G) for _ in range(4))
NAMES = {"embed_tokens.weight": OWN, "lm_head.weight": OWN_HEAD}


def checkpoint(producer, held=NAMES, strict=True, **changes):
    config = tiny_config(**({"draft_vocab_size": 40} | changes))
    tensors = random_tensors(Eagle3Config.from_dict(config, producer="sglang").required_shapes())
    del tensors["lm_head.weight"]
    return checkpoint_from(config, tensors | held, producer=producer, strict=strict)


@pytest.mark.parametrize(
    ("producer", "changes", "embedding", "head"),
    [
        ("specforge", {}, OWN, OWN_HEAD),
        ("specforge", {"draft_vocab_size": None}, OWN, OWN_HEAD),
        ("sglang", {}, TARGETS, OWN_HEAD),
        ("sglang", {"target_hidden_size": 16}, TARGETS, OWN_HEAD),
        ("sglang", {"target_hidden_size": 20}, OWN, OWN_HEAD),  # of another width: nothing to share
        ("sglang", {"draft_vocab_size": None}, TARGETS, TARGETS_HEAD),
        ("sglang", {"tie_word_embeddings": True}, TARGETS, TARGETS),
        ("sglang", {"tie_word_embeddings": True, "target_hidden_size": 20}, OWN, OWN),
    ],
)
def test_which_tensors_are_used(producer, changes, embedding, head):
    draft = Eagle3Draft.from_checkpoint(checkpoint(producer, **changes), TARGETS, TARGETS_HEAD)
    assert torch.equal(draft.embedding, embedding) and torch.equal(draft.lm_head.weight, head)


@pytest.mark.parametrize(
    ("producer", "changes", "severity", "evidence", "remedy"),
    [
        ("specforge", {}, "note", "no head of its own: the target's", ""),
        ("sglang", {"draft_vocab_size": None}, "note", "no head of its own: the target's", ""),
        ("sglang", {"tie_word_embeddings": True}, "note", "no head of its own: the embedding", ""),
        ("sglang", {}, "error", "it is missing: expected [40, 16]", "draft_vocab_size is null"),
        ("sglang", {"target_hidden_size": 20}, "error", "it is missing: expected [40, 16]", "draft_vocab_size is null"),
    ],
)
def test_what_is_said_of_a_file_without_a_head(producer, changes, severity, evidence, remedy):
    draft = checkpoint(producer, {"embed_tokens.weight": OWN}, strict=False, **changes)
    (finding,) = (f for f in draft.findings if f.where.endswith("lm_head.weight"))
    assert finding.severity == severity and evidence in finding.evidence and remedy in finding.remedy


def test_a_draft_of_another_width_needs_an_embedding_to_be_served():
    held, changes = {"lm_head.weight": OWN_HEAD}, {"target_hidden_size": 20}
    with pytest.raises(WiringError) as error:
        checkpoint("sglang", held, **changes)
    assert "expected [40, 16], found nothing" in error.value.problem
    with pytest.raises(WiringError) as error:
        Eagle3Draft.from_checkpoint(checkpoint("sglang", held, strict=False, **changes), TARGETS, TARGETS_HEAD)
    assert error.value.code == "embedding-missing"
    assert checkpoint("specforge", held, **changes).errors == ()


def test_sglang_reads_no_t2d():
    changes = {"draft_vocab_size": 24}
    config = tiny_config(**changes)
    tensors = random_tensors(Eagle3Config.from_dict(config).required_shapes())
    del tensors["d2t"]
    assert "d2t" in checkpoint_from(config, tensors, producer="specforge").tensors
    served = checkpoint_from(config, tensors, producer="sglang", strict=False)
    assert "d2t" not in served.tensors
    (error,) = served.errors
    assert error.where.endswith("d2t") and "takes draft ids for target ids" in error.remedy

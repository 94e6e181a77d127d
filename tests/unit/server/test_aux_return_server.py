"""A server without a draft returns the states that a draft is fed on another: the same ids, texts and rows."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from wiring.capture.records import capture_environment, final_states, read_capture
from wiring.checkpoints.tensor_files import read_json
from wiring.engines.sglang import Speculation
from wiring.layers import Phase
from wiring.server.aux_return import aux_flags_of_draft, generate_with_states
from wiring.server.launch import ServerSpec, start

pytestmark = pytest.mark.server

PROMPTS = ([3 + (7 * i) % 97 for i in range(40)], [5, 60, 61, 62], [9 + (5 * i) % 89 for i in range(21)])
NEW_TOKENS = 12


@dataclass(frozen=True)
class Sources:
    """The texts, and each text's states by phase: as captured beside a draft, and as returned without one."""

    texts: list[list[int]]
    captured: list[dict]
    returned: list[dict]


@pytest.fixture(scope="module")
def sources(pair, tmp_path_factory) -> Sources:
    folder: Path = tmp_path_factory.mktemp("sources")
    spec = ServerSpec(pair.target, pair.draft, Speculation(3, 1, 4), env=capture_environment(folder / "capture"))
    with start(spec, folder / "draft.log", timeout_s=500) as server:
        replies = [server.client.generate(p, NEW_TOKENS, rid=f"{i}") for i, p in enumerate(PROMPTS)]
    texts = [[*prompt, *reply.output_ids] for prompt, reply in zip(PROMPTS, replies, strict=True)]
    records = read_capture(folder / "capture")
    flags = aux_flags_of_draft(read_json(pair.draft / "config.json", "the draft's config"))
    with start(ServerSpec(pair.target, extra_flags=flags), folder / "aux.log", timeout_s=500) as server:
        made = [generate_with_states(server.client, p, NEW_TOKENS, request=f"{i}") for i, p in enumerate(PROMPTS)]
    assert [[*prompt, *output] for prompt, (output, _) in zip(PROMPTS, made, strict=True)] == texts
    return Sources(
        texts,
        [final_states([r for r in records if r.request == f"{i}"], text) for i, text in enumerate(texts)],
        [final_states(records, text) for (_, records), text in zip(made, texts, strict=True)],
    )


def test_prefill_is_the_same_bit_for_bit(sources):
    for prompt, captured, returned in zip(PROMPTS, sources.captured, sources.returned, strict=True):
        (positions, states), (again, same) = captured[Phase.PREFILL], returned[Phase.PREFILL]
        assert positions.tolist() == again.tolist() == list(range(len(prompt)))
        assert torch.equal(states, same)


def test_decoding_gives_what_verify_put_out(sources):
    """One row at a time sums in another order than a verify round: equal up to float32."""
    for i, (text, prompt) in enumerate(zip(sources.texts, PROMPTS, strict=True)):
        captured, returned = sources.captured[i], sources.returned[i]
        rows = dict(zip(captured[Phase.VERIFY][0].tolist(), captured[Phase.VERIFY][1], strict=True))
        positions, states = returned[Phase.VERIFY]
        assert positions.tolist() == list(range(len(prompt), len(text) - 1))
        expected = torch.stack([rows[t] for t in positions.tolist()])
        assert float((states - expected).norm() / expected.norm()) < 1e-5
        moved = expected.roll(1, 0)  # control: the same rows one position off
        assert float((states - moved).norm() / moved.norm()) > 0.1

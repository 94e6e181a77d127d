"""The controls of the search: copies of the tiny draft whose fc is changed in a known way."""

from pathlib import Path

import torch

from wiring.checkpoints.draft_files import read_draft
from wiring.checkpoints.target_files import read_tensor
from wiring.model.eagle3 import Eagle3Draft
from wiring.workbook.case_search import with_shuffled_fc, with_swapped_slots

TINY = Path(__file__).parents[3] / "data" / "tiny"


def test_swapped_slots_read_swapped_states_and_the_original_stays():
    checkpoint = read_draft(TINY / "draft")
    draft = Eagle3Draft.from_checkpoint(checkpoint, read_tensor(TINY / "target", "model.embed_tokens.weight"))
    states = torch.randn(5, 3, 64)
    as_it_was = draft.fc(states.flatten(1))
    torch.testing.assert_close(with_swapped_slots(draft).fc(states[:, [1, 0, 2]].flatten(1)), as_it_was)
    shuffled = with_shuffled_fc(draft)
    assert torch.equal(shuffled.fc.weight.sort(1).values, draft.fc.weight.sort(1).values)
    assert not torch.equal(shuffled.fc.weight, draft.fc.weight)
    assert torch.equal(draft.fc.weight, checkpoint.tensors["fc.weight"].float())

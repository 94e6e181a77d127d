"""The same call in bfloat16 and, where there is one, on a GPU: the same rows, nearly the same choices."""

from pathlib import Path

import pytest
import torch

from wiring.accuracy.draft_evaluation import open_evaluation
from wiring.accuracy.evaluation_result import measure

TINY = Path(__file__).parents[3] / "data" / "tiny"


def depths(**settings):
    opened = open_evaluation(TINY / "draft", TINY / "states", TINY / "target", layout=(0, 3, 31), **settings)
    return measure(opened, 2, limit=8, batch=4, control_sequences=2).report.depths


@pytest.fixture(scope="module")
def plain():
    return depths()


@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": torch.bfloat16},
        pytest.param(
            {"device": "cuda"}, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
        ),
        pytest.param(
            {"device": "cuda", "dtype": torch.bfloat16},
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
        ),
    ],
    ids=["bfloat16", "cuda", "cuda bfloat16"],
)
def test_other_types_and_devices_count_the_same_rows(plain, settings):
    for here, there in zip(depths(**settings), plain, strict=True):
        assert here.total == there.total
        assert here.accuracy == pytest.approx(there.accuracy, abs=0.02)
        assert here.accuracy > 0.6

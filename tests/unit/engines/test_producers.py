"""What a draft's ids meant to the program that trained it, by its version or date."""

import pytest

from wiring.engines.trainers import PRODUCERS, trained_layout
from wiring.errors import WiringError


@pytest.mark.parametrize(
    ("producer", "when", "ids", "layout"),
    [
        ("specforge", None, (1, 29, 57), (2, 30, 58)),
        ("specforge", None, None, (2, 30, 58)),
        ("specforge", "2025-08-31", None, (2, 30, 58)),
        ("specforge", "2025-09-01", None, (2, 31, 58)),  # the middle layer of its online default was one too late
        ("specforge", "2025-10-19", None, (2, 31, 58)),
        ("specforge", "2025-10-20", None, (2, 30, 58)),
        ("specforge", "2025-09-15", (1, 29, 57), (2, 30, 58)),  # ids that were named were meant
        ("speculators", "0.4.0", None, (3, 31, 59)),
        ("speculators", "0.4.0.1", (2, 30, 58), (3, 31, 59)),
        ("speculators", "0.5.0", (2, 30, 58), (2, 30, 58)),
        ("speculators", None, None, (2, 30, 58)),
        ("safeailab", None, (2, 30, 58), (2, 30, 58)),
        ("modelopt", None, (1, 29, 57), (2, 30, 58)),
        ("modelopt/vllm-speculators", None, None, (3, 31, 59)),
        ("modelopt/vllm", None, (1, 29, 57), (1, 29, 57)),
        ("torchspec", None, (1, 29, 57), (2, 30, 58)),
    ],
)
def test_trained_layouts(producer, when, ids, layout):
    assert trained_layout(producer, when, ids, 61)[0] == layout


def test_every_numbering_starts_with_the_producer_and_goes_forward():
    for rules in PRODUCERS.values():
        assert rules[0].since == "0"
        assert all(shift in (0, 1) for rule in rules for shift in rule.shift)


@pytest.mark.parametrize(
    ("producer", "when", "ids", "words"),
    [
        ("nobody", None, (1,), "no layer numbering"),
        ("specforge", "0.2.0", (1,), "not a date"),
        ("speculators", "yesterday", (1,), "not a version"),
        ("specforge", None, None, "too shallow"),
    ],
)
def test_what_cannot_be_told_is_refused(producer, when, ids, words):
    with pytest.raises(WiringError, match=words):
        trained_layout(producer, when, ids, 4)

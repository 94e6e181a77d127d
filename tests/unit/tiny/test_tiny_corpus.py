"""The documents hold together, and no header is in two splits."""

import random
import re

import pytest
from tiny import corpus
from tiny.prompts import LONGEST, SHORTEST, draw_prompts

POWERS_OF_TWO = {pow(2, i, 11): pow(2, i + 1, 11) for i in range(10)}


def documents(kind, count=40, length=160):
    rng = random.Random(f"test {kind}")
    return [corpus.draw(rng, length, "evaluation", kind) for _ in range(count)]


@pytest.mark.parametrize("document", documents("market"), ids=lambda document: " ".join(document.words[2:6]))
def test_every_price_of_a_market_is_quantity_times_unit_price(document):
    text = " ".join(document.words)
    ring = re.match(r"market : ((?:[a-z]+ )+);", text)[1].split()
    price = {good: int(unit) for good, unit in re.findall(r"(\w+) costs (\d+)", text)}
    sentences = re.findall(r"([a-z]+) ([a-z]+) (\d+) ([a-z]+) ([a-z]+) ([a-z]+) = (\d+) \.", text)
    assert len(sentences) >= 14
    for seller, _, quantity, good, _, buyer, cost in sentences:
        assert int(cost) == int(quantity) * price[good]
        assert ring[(ring.index(seller) + 1) % len(ring)] == buyer
    for before, after in zip(sentences, sentences[1:], strict=False):
        assert after[0] == before[5]  # who bought sells next
        assert int(after[2]) == POWERS_OF_TWO[int(before[2])]
        assert after[4] == before[4]


def apply(operation, numbers):
    return {
        "rev": lambda: [*reversed(numbers)],
        "rot": lambda: [*numbers[1:], numbers[0]],
        "inc": lambda: [0 if n == 99 else n + 1 for n in numbers],
        "dec": lambda: [99 if n == 0 else n - 1 for n in numbers],
    }[operation]()


@pytest.mark.parametrize("document", documents("lists"), ids=lambda document: " ".join(document.words[2:8]))
def test_every_list_is_its_operation_on_the_list_before(document):
    words = " ".join(document.words)
    numbers = [int(word) for word in words.split(";")[1].split() if word.isdigit()]
    order = words.split(";")[0].split()[2:]
    size = document.header - 6
    numbers, done = numbers[:size], 0
    for operation, listed in re.findall(r"(rev|rot|inc|dec) = ((?:\d+ )+)", words)[:-1]:  # the last may be cut off
        assert operation == order[done % 3]
        numbers = apply(operation, numbers)
        assert [int(word) for word in listed.split()] == numbers
        done += 1
    assert done >= 19


def test_a_start_is_behind_the_header_and_every_word_has_an_id():
    for document in documents("market") + documents("lists"):
        assert document.header <= document.start < 40
        assert [corpus.WORDS[i] for i in document.ids] == list(document.words)
    assert len(set(corpus.WORDS)) == len(corpus.WORDS) <= 192


def headers(split, seed, count=400):
    return {document.words[: document.header] for document in corpus.draw_many(seed, count, 64, split)}


def test_the_splits_share_no_header():
    splits = (corpus.TRAINING, *corpus.SPLITS)
    drawn = {split: headers(split, f"any {split}") for split in splits}
    for split in splits:
        for other in splits:
            assert split == other or not drawn[split] & drawn[other]
    assert drawn["states"] & headers("states", "any states")  # the same seed would have been seen to overlap


def test_prompts_are_of_their_split_of_both_kinds_and_of_the_promised_length():
    prompts = draw_prompts(0, 24, 102)
    assert {prompt.document.split for prompt in prompts} == {"prompts"}
    assert [prompt.document.kind for prompt in prompts].count("market") == 12
    for prompt in prompts:
        assert SHORTEST <= len(prompt.words) <= LONGEST
        assert prompt.document.start < len(prompt.words)
        assert len(prompt.document.words) == len(prompt.words) + 102

"""Two kinds of generated documents in which every word follows from a header, by computation, without a loop.

`market`: a ring of traders passes goods on, quantity runs through the powers of two modulo 11, and each
sentence ends with quantity x unit price. `lists`: three operations are applied in turn to a list of numbers.
Words are separated by blanks; one word is one token.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass

NAMES = tuple(
    "ann bob cat dan eve fay gil hal ida jon kim lee mia ned ola pam quin ray sue tom uma vic wes xia yan zoe".split()
)
GOODS = tuple("pear fig nut rice salt silk iron gold wool wine corn tea oil milk clay coal".split())
VERBS = tuple("sells lends gives trades ships".split())
PREPOSITIONS = tuple("to for via past".split())
SYMBOLS = tuple(". ; : = market lists costs rev rot inc dec".split())
SPECIAL = ("<bos>", "<eos>", "<pad>", "<unk>")
NUMBERS = tuple(str(number) for number in range(100))
WORDS = SPECIAL + SYMBOLS + NAMES + GOODS + VERBS + PREPOSITIONS + NUMBERS
IDS = {word: index for index, word in enumerate(WORDS)}
POWERS = (1, 2, 4, 8, 5, 10, 9, 7, 3, 6)  # 2**i modulo 11
SENTENCE = 9  # words in a sentence of a market

# A document belongs to the split that its header hashes to, so no two splits ever share a header.
SPLITS = ("evaluation", "states", "prompts")
TRAINING = "training"
_SHARES = 16  # one sixteenth for each of SPLITS, the rest for training


@dataclass(frozen=True)
class Document:
    """`words[start:]` follow from the words before them; `words[:header]` name the document."""

    kind: str
    words: tuple[str, ...]
    header: int
    start: int

    @property
    def ids(self) -> list[int]:
        """Token ids of the words."""
        return [IDS[word] for word in self.words]

    @property
    def split(self) -> str:
        """Which split the header hashes to."""
        share = zlib.crc32(" ".join(self.words[: self.header]).encode()) % _SHARES
        return SPLITS[share] if share < len(SPLITS) else TRAINING


def market(rng: random.Random, length: int) -> Document:
    """A ring of 3 or 4 traders, 2 or 3 goods with their prices, then sentences; `length` words in all."""
    traders = rng.sample(NAMES, rng.randint(3, 4))
    goods = rng.sample(GOODS, rng.randint(2, 3))
    price = {good: rng.randint(2, 9) for good in goods}
    words = ["market", ":", *traders, ";"]
    for good in goods:
        words += [good, "costs", str(price[good])]
    words.append(".")
    header = len(words)
    seller, good, power, verb, preposition = (
        rng.randrange(len(part)) for part in (traders, goods, POWERS, VERBS, PREPOSITIONS)
    )
    while len(words) < length:
        quantity, item = POWERS[power % 10], goods[good % len(goods)]
        words += [traders[seller % len(traders)], VERBS[verb % len(VERBS)], str(quantity), item]
        buyer, cost = traders[(seller + 1) % len(traders)], str(quantity * price[item])
        words += [PREPOSITIONS[preposition], buyer, "=", cost, "."]
        seller, good, power, verb = seller + 1, good + 1, power + 1, verb + 1
    # The first sentence draws its own beginning, so it cannot be foretold.
    return Document("market", tuple(words[:length]), header, header + SENTENCE)


OPERATIONS: dict[str, Callable[[list[int]], list[int]]] = {
    "rev": lambda numbers: numbers[::-1],
    "rot": lambda numbers: numbers[1:] + numbers[:1],
    "inc": lambda numbers: [(number + 1) % 100 for number in numbers],
    "dec": lambda numbers: [(number - 1) % 100 for number in numbers],
}


def lists(rng: random.Random, length: int) -> Document:
    """Reverse, rotate and one of increment or decrement, in some order, applied in turn to 3 to 5 numbers."""
    numbers = rng.sample(range(100), rng.randint(3, 5))
    operations = ["rev", "rot", rng.choice(["inc", "dec"])]
    rng.shuffle(operations)
    words = ["lists", ":", *operations, ";", *map(str, numbers)]
    header, turn = len(words), 0
    while len(words) < length:
        operation = operations[turn % 3]
        numbers = OPERATIONS[operation](numbers)
        words += [operation, "=", *map(str, numbers)]
        turn += 1
    return Document("lists", tuple(words[:length]), header, header)


KINDS: dict[str, Callable[[random.Random, int], Document]] = {"market": market, "lists": lists}


def draw(rng: random.Random, length: int, split: str, kind: str | None = None) -> Document:
    """Draw documents of `length` words until one belongs to `split`; `kind` None draws the kind too."""
    while True:
        document = KINDS[kind or rng.choice(tuple(KINDS))](rng, length)
        if document.split == split:
            return document


def draw_many(seed: str, count: int, length: int, split: str) -> list[Document]:
    """`count` documents of `split`, both kinds in turn, the same for the same seed."""
    rng = random.Random(seed)
    kinds = tuple(KINDS)
    return [draw(rng, length, split, kinds[index % len(kinds)]) for index in range(count)]

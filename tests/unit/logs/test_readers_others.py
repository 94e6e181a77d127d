"""llama.cpp, TensorRT-LLM, ModelOpt, xinfer, Automodel: lines as they stand in public threads."""

import pytest

from wiring.logs import read_lines
from wiring.logs.evidence import AcceptanceRecord, AccuracyRecord, SpeedRecord

# llama.cpp pull request 24536
LLAMA = [
    "0.06.895.998 I slot print_timing: id  1 | task 0 |        eval time =    2296.72 ms /   256 tokens (    8.97 ms "
    "per token,   111.46 tokens per second)",
    "0.06.896.015 I slot print_timing: id  1 | task 0 | draft acceptance = 0.64479 (  167 accepted /   259 generated), "
    "mean acceptance length =  2.92, acceptance rate per position = (0.805, 0.632, 0.483)",
    "0.06.896.057 I statistics     draft-eagle3: #calls(b,g,a) =    1     87     87, #gen drafts =     87, "
    "#acc drafts =    70, #gen tokens =    259, #acc tokens =   167, #mean acc len = 2.92, "
    "#acc rate/pos = (0.805, 0.632, 0.483), dur(b,g,a) = 0.005, 325.555, 0.114 ms",
]
# llama.cpp before that pull request: no length; the counters tell the rounds.
OLDER = [
    "slot print_timing: id  3 | task 0 | draft acceptance rate = 0.37500 (    3 accepted /     8 generated)",
    "statistics draft-mtp: #calls(b,g,a) = 1 4 4, #gen drafts = 4, #acc drafts = 2, #gen tokens = 8, #acc tokens = 3, "
    "dur(b,g,a) = 0.006, 21.272, 0.010 ms",
]


@pytest.mark.parametrize("lines", [LLAMA, LLAMA[:2]])  # with the counters, and told from the printed shares alone
def test_llama_cpp(lines):
    found, speed = read_lines(lines)
    assert (found.rounds, found.proposed, found.impossible) == (87, 3, "")
    assert found.accept_length == pytest.approx(1 + 167 / 87) and found.by_position == (0.805, 0.632, 0.483)
    assert isinstance(speed, SpeedRecord) and speed.tok_per_s == 111.46


def test_older_llama_cpp_has_its_rounds_in_the_counters():
    (found,) = read_lines(OLDER)
    assert (found.rounds, found.accept_length) == (4, 1.75)


def test_counters_of_a_second_request_are_taken_apart():
    second = [
        "slot print_timing: id  3 | task 9 | draft acceptance rate = 0.50000 (    6 accepted /    12 generated)",
        "statistics draft-mtp: #calls(b,g,a) = 2 10 10, #gen drafts = 10, #acc drafts = 6, #gen tokens = 20, "
        "#acc tokens = 9, dur(b,g,a) = 0.006, 21.272, 0.010 ms",
    ]
    first, found = read_lines(OLDER + second)
    assert (first.rounds, found.rounds, found.accept_length) == (4, 6, 2.0)


def test_a_rate_without_rounds_gives_no_length():
    (found,) = read_lines(OLDER[:1])
    assert found.accept_length is None and found.rounds is None and "no accept length follows" in found.rule
    (found,) = read_lines(OLDER[:1], steps=2)
    assert found.accept_length == pytest.approx(1.75) and "if every draft was full" in found.rule


def test_newest_llama_cpp_puts_the_positions_on_their_own_line():
    lines = [
        "slot print_timing: id  0 | task 0 | draft acceptance = 0.71053 (  108 accepted /   152 generated), "
        "mean len =  3.12",
        "slot print_timing: id  0 | task 0 |      acc per pos = (0.902, 0.725, 0.490)",
    ]
    (found,) = read_lines(lines)
    assert found.by_position == (0.902, 0.725, 0.490) and not found.impossible
    assert found.rounds == 51 and found.accept_length == pytest.approx(1 + 108 / 51)


@pytest.mark.parametrize(
    "lines",
    [
        ["[AL] MINIMUM 1.04 MAXIMUM 3.82 AVERAGE 1.86 P50 1.78 P90 2.44 P95 2.67 P99 3.20"],  # TensorRT-LLM issue 9208
        [
            "-- Acceptance Length Details ---",
            "[AL] MINIMUM: 1.04",
            "[AL] MAXIMUM: 3.82",
            "[AL] AVERAGE: 1.86",
            "[AL] P50    : 1.78",
        ],
        ["[AR] MINIMUM: 1.04", "[AR] MAXIMUM: 3.82", "[AR] AVERAGE: 1.86"],
    ],
)
def test_tensorrt_llm(lines):
    (found,) = read_lines(lines)
    assert found.accept_length == 1.86 and found.rounds is None and "counts the prefill as a round" in found.rule


def test_tensorrt_llm_with_drafted_and_accepted_tokens():
    # 3 drafts per round, 101 iterations of which one is the prefill, 86 accepted: 1 + 86 / 100, printed 187 / 101.
    lines = ["[DT] AVERAGE: 303.00", "[ADT] AVERAGE: 86.00", "[DAR] AVERAGE: 0.28", "[AL] AVERAGE: 1.85"]
    (found,) = read_lines(lines, steps=3)
    assert found.accept_length == pytest.approx(1.86)


def test_modelopt_line_and_histogram():
    (found,) = read_lines(["Average Acceptance Length {'accept': 2310, 'count': 1000, 'ratio': 2.31}"])
    assert (found.rounds, found.accept_length) == (1000, pytest.approx(2.31))
    (wrong,) = read_lines(["Average Acceptance Length {'accept': 2310, 'count': 1000, 'ratio': 3.31}"])
    assert "counted twice" in wrong.impossible and wrong.accept_length == pytest.approx(2.31)
    (found,) = read_lines(["Average AL: 2.1", "Acceptance Length Histogram", "{1: 40, 2: 30, 3: 20, 4: 10}"])
    # 100 rounds; 60, 30 and 10 of them accepted at least 1, 2 and 3 drafts.
    assert (found.rounds, found.accept_length) == (100, pytest.approx(2.0))
    assert found.by_position == pytest.approx((0.6, 0.3, 0.1))


def test_xinfer_counts_the_bonus_token_twice():
    # guoqingbao/xinfer pull request 369, --mtp 2: 1536 proposed are 768 rounds; 1 + 658 / 768 = 1.857, printed 2.86.
    lines = [
        "INFO xinfer::core::runner: MTP Stats: proposed=32, accepted=21, acceptance_rate=65.62%, avg_tokens/step=3.31",
        "INFO xinfer::core::runner: MTP Stats: proposed=1536, accepted=658, acceptance_rate=42.84%, "
        "avg_tokens/step=2.86",
    ]
    (found,) = read_lines(lines)
    assert found.accept_length == pytest.approx(1 + 658 / 768) and (found.rounds, found.proposed) == (768, 2)
    assert "one higher" in found.impossible and "bonus token of each round was counted twice" in found.impossible


def test_automodel_is_a_training_figure():
    lines = [
        "epoch=0 step=14 train_loss=9.117183 train_acc=0.026200 train_tau_sim=1.0385 lr=9.297e-05",
        "epoch=0 step=42 train_loss=5.543119 train_acc=0.104492 train_tau_sim=1.2137 lr=8.934e-05",
    ]
    (found,) = read_lines(lines)
    assert (
        isinstance(found, AccuracyRecord) and found.accuracy == 0.104492 and found.claimed and found.text == "training"
    )
    assert "1.2137" in found.rule and not isinstance(found, AcceptanceRecord)


def test_lines_of_nothing_known_give_nothing():
    assert (
        read_lines(["GET / 200", "{'a': 1}", "| x | y |", "Position sizing: 3", "num_workers: 4", "Accepted: yes"])
        == ()
    )

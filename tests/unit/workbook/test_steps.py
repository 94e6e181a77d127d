"""The state of the steps is what the chain then does: what does not stand is what it runs first, and all behind it."""

from __future__ import annotations

import json
import os

import pytest

from wiring.errors import WiringError
from wiring.workbook.execute import _correct
from wiring.workbook.notebook_job import JobResult
from wiring.workbook.run_status import BY_HAND, steps, table

ALL = ("01_step", "02_step", "03_step")


def look(toy, validate=None, **more):
    return steps(toy.plan(**more), validate)


def states(toy, **more):
    return [step.state for step in look(toy, **more)]


def first_to_run(found):
    """Where the chain would begin: at the first step that is not on record as standing."""
    return next((step.name for step in found if step.state != "ran" or step.why), None)


@pytest.fixture
def done(toy, in_process):
    toy.chain()
    return toy


def test_before_a_run_there_is_nothing_and_nothing_is_made(toy):
    assert states(toy) == ["not run"] * 3
    assert not toy.run.parent.exists()


def test_after_a_run_all_stands_with_its_times(done):
    found = look(done)
    assert [(step.name, step.state, step.why) for step in found] == [(name, "ran", "") for name in ALL]
    marker = json.loads((done.run / "02.done.json").read_text())
    assert (found[1].finished, found[1].took) == (marker["finished"][:16].replace("T", " "), marker["took"])
    shown = table(found)
    assert list(shown.index) == list(ALL) and list(shown["state"]) == ["ran"] * 3


CHANGES = {
    "code of 02": lambda toy: toy.write(2, extra="value += 1"),
    "library": lambda toy: (toy.root / "library" / "code.py").write_text("two = 2\n"),
    "input": lambda toy: (toy.root / "input" / "data.txt").write_text("other\n"),
    "profile": lambda toy: toy.profile.write_text(toy.profile.read_text() + "# more\n"),
    "artefact of 02 gone": lambda toy: (toy.run / "02_value.json").unlink(),
    "artefact of 02 edited": lambda toy: (toy.run / "02_value.json").write_text('{"value": 5}'),
    "marker of 03 gone": lambda toy: (toy.run / "03.done.json").unlink(),
    "marker of 01 cut": lambda toy: (toy.run / "01.done.json").write_text("{"),
    "executed 02 gone": lambda toy: (toy.run / "notebooks" / "02_step.ipynb").unlink(),
    "prose of 01": lambda toy: toy.write(1),
    "nothing": lambda toy: None,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_chain_begins_where_the_steps_say(done, change):
    change(done)
    told = look(done)
    ran = done.chain().ran
    assert first_to_run(told) == (ran[0] if ran else None)
    assert [step.state for step in look(done)] == ["ran"] * 3


def test_a_changed_parameter_is_stale_under_it_alone(done):
    assert states(done, overrides={"factor": 3}) == ["stale"] * 3
    assert states(done) == ["ran"] * 3


def test_what_lies_behind_a_stale_step_is_stale_and_says_so(done):
    done.write(1, extra="value += 1")
    one, two, three = look(done)
    assert "its code, parameters or input changed" in one.why
    assert (two.state, two.why) == ("stale", "01_step before it is stale")
    assert (three.state, three.why) == ("stale", "02_step before it is stale")
    (done.run / "01_value.json").unlink()
    assert look(done)[1].why == "01_step before it has not run"


def by_hand(toy, number, at):
    """The artefact that notebook `number` leaves when it is run by hand, written at this second."""
    toy.run.mkdir(parents=True, exist_ok=True)
    path = toy.run / f"{number:02d}_value.json"
    path.write_text(json.dumps({"value": 40 + number}))
    os.utime(path, (at, at))


def test_steps_run_by_hand_count_by_the_order_in_time(toy):
    for number in (1, 2, 3):
        by_hand(toy, number, at=1000 + number)
    assert [(step.state, step.why) for step in look(toy)] == [("ran", BY_HAND)] * 3
    by_hand(toy, 1, at=2000)
    assert [step.state for step in look(toy)] == ["ran", "stale", "stale"]
    assert look(toy)[1].why == "01_step before it ran again since"


def test_a_step_run_again_by_hand_makes_stale_what_the_chain_made_of_it(done):
    made = int((done.run / "03_value.json").stat().st_mtime)
    by_hand(done, 2, at=made + 10)
    one, two, three = look(done)
    assert [step.state for step in (one, two, three)] == ["ran", "ran", "stale"]
    assert (one.why, two.why, three.why) == ("", BY_HAND, "02_step before it ran again since")
    os.utime(done.run / "03_value.json", (made + 20, made + 20))
    assert look(done)[2].why == "on a 02_step that was run by hand"


def test_an_artefact_that_is_not_valid_is_stale_with_the_reason(done):
    def validate(run, name):
        if name == "02_value":
            raise WiringError("not an artefact of this release", where=name)

    assert [step.state for step in look(done, validate)] == ["ran", "stale", "stale"]
    assert look(done, validate)[1].why == "its artefact is not valid: not an artefact of this release"


def test_a_notebook_that_failed_says_how_it_ended(done):
    (done.run / "02_value.json").unlink()
    _correct(done.run / "notebooks" / "02_step.ipynb", JobResult("timed_out", 2, "work", "the cell took too long"))
    assert look(done)[1].why == "it timed out: the cell took too long"

"""How a profile becomes prompts and servers, without starting one."""

import json
from types import SimpleNamespace

import pytest

from wiring.bench.measurement import Measurement, Trial, this_machine
from wiring.engines.sglang import Speculation
from wiring.errors import WiringError
from wiring.workbook import live
from wiring.workbook.profile import EngineAsked, SpeculationAsked
from wiring.workbook.rebenchmark import round_costs


def profile(tmp_path, **engine):
    return SimpleNamespace(
        target=tmp_path / "target",
        draft=tmp_path / "draft",
        engine=EngineAsked(**engine),
        speculation=SpeculationAsked(),
    )


def test_prompts_are_read_in_order(tmp_path):
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps([{"input_ids": [1, 2], "text": "a b"}, {"input_ids": [3]}]))
    assert live.read_prompts(path, 1) == [[1, 2]]
    with pytest.raises(WiringError) as error:
        live.read_prompts(path, 3)
    assert (error.value.code, error.value.expected, error.value.found) == ("too-few-prompts", "3 or more", "2")


@pytest.mark.parametrize("name, found", [("", "Is a directory"), ("none.json", "No such file or directory")])
def test_unreadable_prompts_are_refused(tmp_path, name, found):
    with pytest.raises(WiringError) as error:
        live.read_prompts(tmp_path / name, 1)
    assert (error.value.code, error.value.found) == ("prompts-unreadable", found)


def test_the_remedy_names_what_set_the_count(tmp_path):
    path = tmp_path / "prompts.json"
    for text, setter, remedy in (
        ('[{"input_ids": [1]}]', {}, "Add prompts or lower benchmark.prompts in the profile"),
        ('[{"input_ids": [1]}]', {"asked_by": "--count"}, "Add prompts or lower --count"),
        ("[]", {"asked_by": "--count"}, "Add prompts"),  # a lower count does not help
    ):
        path.write_text(text)
        with pytest.raises(WiringError) as error:
            live.read_prompts(path, 8, **setter)
        assert error.value.remedy == remedy


@pytest.mark.parametrize(
    "content, found",
    [
        (b"", "an empty file"),
        (b"\x80\x00" * 9, "no UTF-8 text"),
        (b"{", ""),
        (b"[1]", ""),
        (b'[{"text": "no ids"}]', ""),
        (b'{"input_ids": [1]}', ""),
        (b'[{"input_ids": ["a"]}]', ""),
    ],
)
def test_a_file_of_another_shape_is_refused(tmp_path, content, found):
    path = tmp_path / "prompts.json"
    path.write_bytes(content)
    with pytest.raises(WiringError) as error:
        live.read_prompts(path, 1)
    assert (error.value.code, error.value.where) == ("prompts-not-a-list", str(path))
    assert not found or error.value.found == found


def test_the_server_gets_the_speculation_as_asked_not_as_resolved(tmp_path):
    asked = live.server_spec(profile(tmp_path), draft=tmp_path / "draft")
    assert asked.speculation == Speculation(5, 1, 8)
    assert live.server_spec(profile(tmp_path)).speculation is None
    other = live.server_spec(
        profile(tmp_path), draft=tmp_path / "draft", speculation=Speculation(3, 1, 4), env={"A": "1"}
    )
    assert other.speculation == Speculation(3, 1, 4) and other.env == {"A": "1"}


def test_a_running_server_is_attached_to_only_for_the_draft_as_it_is(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(live, "attach", lambda url, **how: opened.append((url, *how.values())))
    monkeypatch.setenv("SGLANG_API_KEY", "secret")
    monkeypatch.setattr(live, "start_server", lambda case, spec, name, progress, wait: opened.append((name, wait)))
    case = SimpleNamespace(profile=profile(tmp_path, url="http://h:1", plain_url="http://h:2"))
    for arm in (
        live.plain_arm(case, "01"),
        live.draft_arm(case, "01"),
        live.draft_arm(case, "05", live.CURED, draft=tmp_path / "cured"),
        live.draft_arm(case, "05", "steps 3", speculation=Speculation(3, 1, 4)),
    ):
        arm.open()
    started = [("05-cured", False), ("05-steps 3", False)]  # on the CPU side by side
    assert opened == [("http://h:2", "secret", True), ("http://h:1", "secret", True), *started]
    live.plain_arm(SimpleNamespace(profile=profile(tmp_path, device="cuda")), "01").open()
    assert opened[-1] == ("01-plain", True)  # on a GPU each waits for the one before


def test_a_round_is_priced_in_plain_steps_of_the_same_run():
    def trial(arm, prompt, seconds, rounds=0):
        return Trial(
            arm=arm,
            prompt=prompt,
            repeat=0,
            order=prompt,
            seconds=seconds,
            prefill_s=1.0,
            output_ids=tuple(range(11)),
            rounds=rounds,
        )

    trials = [trial("plain", 0, 11.0), trial("plain", 1, 21.0)]  # 1 s and 2 s a step: the machine slowed down
    trials += [
        trial("steps 3", 0, 10.0, 6),
        trial("steps 3", 1, 19.0, 6),
        trial("steps 7", 0, 9.0, 4),
        trial("steps 7", 1, 17.0, 4),
    ]
    costs = Measurement(machine=this_machine(), order="interleaved", new_tokens=11, prompt_ids=(), trials=tuple(trials))
    assert round_costs(costs, (3, 7)) == {3: pytest.approx(1.5), 7: pytest.approx(2.0)}

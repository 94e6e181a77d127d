"""The readers of SGLang's figures against the releases' own code: each prints the same rounds by its own statements."""

from __future__ import annotations

import ast
import os
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.version import Version
from release_source import Release, function
from wheel_store import folder, wheel

from wiring.logs import read_lines, read_meta_info

pytestmark = [pytest.mark.releases, pytest.mark.timeout(600)]

RELEASES = (
    os.environ.get("WIRING_RELEASES")
    or ("0.4.6 0.4.9 0.5.4.post1 0.5.6.post2 0.5.9 0.5.10.post1 0.5.11 0.5.12.post1 0.5.13 0.5.16 0.5.20 0.5.21 0.5.23")
).split()
MODULES = (
    "managers/scheduler_components/metrics_reporter.py",
    "observability/scheduler_metrics_mixin.py",
    "managers/scheduler_metrics_mixin.py",
    "managers/scheduler.py",
)
STEPS = 3
ROUNDS = [2, 0, 3, 1, 1, 0, 0, 2, 1, 3]  # drafts accepted: accept length 2.3, 13 of 30 drafts
HISTOGRAM = [3, 3, 2, 2]


@cache
def release(version: str) -> Release:
    folder().mkdir(parents=True, exist_ok=True)
    return Release(wheel(version))


def methods(version: str, modules: tuple[str, ...]) -> dict[str, ast.FunctionDef]:
    """Every method of the release's modules of these names, the newest place first."""
    source, found = release(version), {}
    for module in modules:
        if source.has(module):
            for node in ast.walk(source.tree(module)):
                if isinstance(node, ast.FunctionDef):
                    found.setdefault(node.name, node)
    return found


def printed(version: str) -> str:
    """The part of a decode line about the draft, as the release's own statements make it of `ROUNDS`."""
    known = methods(version, MODULES)
    spec = SimpleNamespace(speculative_num_steps=STEPS, speculative_num_draft_tokens=STEPS + 1)
    algorithm = SimpleNamespace(is_none=lambda: False, is_dspark=lambda: False)
    scheduler = SimpleNamespace(spec_algorithm=algorithm, server_args=spec, draft_worker=None)
    counters = (
        "spec_num_total_accepted_tokens spec_num_total_forward_ct cum_spec_accept_length cum_spec_accept_count "
        "spec_num_accepted_tokens spec_num_forward_ct spec_total_num_accepted_tokens spec_total_num_forward_ct "
        "spec_num_accept_tokens spec_num_correct_drafts spec_total_num_accept_tokens spec_num_block_accept_tokens "
        "spec_num_cap_tokens num_generated_tokens"
    ).split()
    me = SimpleNamespace(
        scheduler=scheduler,
        spec_algorithm=algorithm,
        server_args=spec,
        draft_worker=None,
        current_scheduler_metrics_enabled=False,
        **dict.fromkeys(counters, 0),
    )
    if "update_spec_metrics" in known:
        update = function(known["update_spec_metrics"])
        extra = "num_accept_tokens" in {argument.arg for argument in known["update_spec_metrics"].args.args}
        for accepted in ROUNDS:
            update(me, 1, accepted, *([accepted + 1] if extra else []))
    else:  # up to 0.5.4 the scheduler adds them up within its run of a batch
        me.spec_num_total_accepted_tokens = sum(accepted + 1 for accepted in ROUNDS)
        me.spec_num_total_forward_ct = len(ROUNDS)
    statement = next(
        node
        for method in known.values()
        for node in ast.walk(method)
        if isinstance(node, ast.If)
        and "spec_algorithm.is_none()" in ast.unparse(node.test)
        and "accept len" in str([constant.value for constant in ast.walk(node) if isinstance(constant, ast.Constant)])
    )
    body = [part for part in statement.orelse if not isinstance(part, ast.ImportFrom)]
    scope: dict[str, Any] = {
        "self": me,
        "msg": "",
        "get_spec": lambda: spec,
        "RaggedVerifyMode": SimpleNamespace(CAP_ACCEPT=object()),
        "read_ragged_verify_mode": lambda: None,
    }
    exec(compile(ast.Module(body, []), version, "exec"), scope)
    return scope["msg"]


@pytest.mark.parametrize("version", RELEASES)
def test_a_decode_line(version):
    line = f"Decode batch, #running-req: 1, {printed(version)}cuda graph: True"
    (found,) = read_lines([line], version=version, steps=STEPS, topk=1)
    assert found.accept_length == 1 + sum(ROUNDS) / len(ROUNDS) == 2.3
    assert found.proposed == STEPS and not found.impossible, (line, found.impossible)
    if "accept rate" in line:  # 13 / 30 = 0.43 drafts alone, 23 / 40 = 0.57 with the bonus token
        assert ("drafts only" in found.rule) is ("0.43" in line) is (Version(version) >= Version("0.5.11"))
        other = "0.5.9" if "0.43" in line else "0.5.23"
        (wrong,) = read_lines([line], version=other, steps=STEPS, topk=1)
        assert "release is another" in wrong.impossible
        (told,) = read_lines([line])  # by the figures alone
        assert told.proposed == STEPS and "inferred from the figures" in told.rule


@pytest.mark.parametrize("version", RELEASES)
def test_meta_info(version):
    meta: dict[str, Any] = {"completion_tokens": 1 + len(ROUNDS) + sum(ROUNDS), "spec_verify_ct": len(ROUNDS)}
    known = methods(version, ("managers/tokenizer_manager.py",))
    if "_calculate_spec_decoding_metrics" in known:
        spec = SimpleNamespace(speculative_num_steps=STEPS, speculative_num_draft_tokens=STEPS + 1)
        count = function(
            known["_calculate_spec_decoding_metrics"],
            get_spec=lambda: spec,
            _ragged_verify_cap_accept=lambda: False,
            **dict.fromkeys(("BatchEmbeddingOut", "BatchEmbeddingOutput"), bytes),  # a class that no batch here is of
        )
        batch = SimpleNamespace(
            completion_tokens=[meta["completion_tokens"]],
            spec_verify_ct=[len(ROUNDS)],
            spec_accepted_tokens=[sum(ROUNDS)],
            spec_accepted_drafts=[sum(ROUNDS)],
            spec_num_correct_drafts=[sum(ROUNDS)],
            spec_acceptance_histogram=[HISTOGRAM],
            spec_correct_drafts_histogram=[HISTOGRAM],
        )
        count(SimpleNamespace(server_args=spec), meta, batch, 0)
    (found,) = read_meta_info([{"meta_info": meta}], version, steps=STEPS, topk=1)
    assert (found.rounds, found.accept_length, found.proposed) == (10, 2.3, STEPS) and not found.impossible
    if Version(version) >= Version("0.5.9"):  # 7, 4 and 2 of the 10 rounds accepted 1, 2 and 3 drafts at least
        assert found.by_position == pytest.approx((0.7, 0.4, 0.2))

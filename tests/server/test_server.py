"""Two servers with SGLang 0.5.23 at the same time: chains, owned by another process, and trees, owned by this one.

The tests of this file run in order: the last two end the servers.
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from wiring.capture.folder_summary import read_capture, summarize
from wiring.capture.records import NOTE, capture_environment, final_states
from wiring.engines.sglang import Speculation
from wiring.errors import WiringError
from wiring.layers import Phase
from wiring.server.arguments import asked_vs_resolved
from wiring.server.launch import attach, start
from wiring.server.ports import free_port
from wiring.server.server_spec import ServerSpec

pytestmark = pytest.mark.server

OWNER = Path(__file__).parent / "programs" / "serving_owner.py"
ASKED, TREE = Speculation(5, 1, 8), Speculation(3, 4, 8)
PROMPTS = ([3 + (7 * i) % 97 for i in range(40)], [5, 60, 61, 62], [9 + (5 * i) % 89 for i in range(21)])
NEW_TOKENS = 24


def session(leader):
    """Return a server's running processes: those in the session of its main process, and their descendants."""
    members = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                members |= {process, *process.children(recursive=True)}
    return members


def shared_memory(processes):
    found = set()
    for process in processes:
        with suppress(OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            found |= {word for word in maps.split() if word.startswith("/dev/shm/")}
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="module")
def servers(pair, folder):
    """Both servers, started at the same time."""
    words = [pair.target, pair.draft, folder / "chain.log", folder / "chain"]
    owner = subprocess.Popen([sys.executable, OWNER, *words], stdout=subprocess.PIPE, text=True)
    tree_spec = ServerSpec(pair.target, pair.draft, TREE, env=capture_environment(folder / "tree", prefix="test-"))
    with ExitStack() as stack:
        stack.callback(owner.stdout.close)
        stack.callback(owner.wait)
        stack.callback(owner.kill)
        ours = stack.enter_context(ExitStack())
        tree = ours.enter_context(start(tree_spec, folder / "tree.log", timeout_s=500))
        report = json.loads(owner.stdout.readline())
        chain = attach(report["url"])
        yield SimpleNamespace(chain=chain, tree=tree, owner=owner, chain_pid=report["pid"], end_ours=ours.close)


@pytest.fixture(scope="module")
def texts(servers):
    """Prompts and answers of both servers, three requests at a time: {arm: [prompt + output]}."""

    def ask(arm, index):
        reply = getattr(servers, arm).client.generate(PROMPTS[index], NEW_TOKENS, rid=f"test-{index}")
        return PROMPTS[index] + list(reply.output_ids)

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        return {arm: list(pool.map(lambda i, arm=arm: ask(arm, i), range(len(PROMPTS)))) for arm in ("chain", "tree")}


@pytest.fixture(scope="module")
def reference(pair):
    """The target in transformers, float32: text -> (hidden states by boundary, greedy next token by position)."""
    from wiring.model.torchvision_operators import declare_torchvision_operators

    declare_torchvision_operators()
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.float32)

    def forward(text):
        with torch.no_grad():
            result = model(torch.tensor([text]), output_hidden_states=True)
        return [state[0] for state in result.hidden_states], result.logits[0].argmax(-1)

    return forward


def test_a_server_with_a_taken_port_is_reported_at_once(pair, tmp_path):
    """Its own worker takes the port: SGLang does this to itself once in 8000 starts on ports from 22000 to 29999."""
    port, begin = str(free_port()), time.monotonic()
    spec = ServerSpec(pair.target, extra_flags=("--port", port, "--nccl-port", port))
    with pytest.raises(WiringError) as error, start(spec, tmp_path / "log", timeout_s=3600):
        pass
    assert error.value.code == "server-port-taken" and port in error.value.found
    assert time.monotonic() - begin < 600  # far below the start's own limit


def test_both_generate_the_tokens_of_the_target(texts, reference):
    assert texts["chain"] == texts["tree"]
    for prompt, text in zip(PROMPTS, texts["chain"], strict=True):
        assert len(text) == len(prompt) + NEW_TOKENS
        _, following = reference(text)
        assert following[len(prompt) - 1 : -1].tolist() == text[len(prompt) :]


@pytest.mark.parametrize("arm", ["chain", "tree"])
def test_captured_states_are_the_served_boundaries_in_every_phase(texts, reference, pair, folder, arm):
    records = read_capture(folder / arm)
    assert {record.request for record in records} == {"test-0", "test-1", "test-2"}  # no warm-up, no health check
    if arm == "chain":  # 40 tokens in chunks of 16 at most
        assert len([r for r in records if r.request == "test-0" and r.phase is Phase.PREFILL]) >= 3
    for index, (prompt, text) in enumerate(zip(PROMPTS, texts[arm], strict=True)):
        boundaries, _ = reference(text)
        found = final_states([r for r in records if r.request == f"test-{index}"], text)
        assert found[Phase.PREFILL][0].tolist() == list(range(len(prompt)))
        assert set(found) == set(Phase)
        # The last token of the text is sampled, not fed back, unless its round verified it.
        verified = found[Phase.VERIFY][0].tolist()
        assert verified == list(range(len(prompt), verified[-1] + 1)) and verified[-1] >= len(text) - 2
        for positions, states in found.values():
            expected = torch.stack([boundaries[b][positions] for b in pair.layout], dim=1)  # [M, n, H]
            error = (states.view_as(expected) - expected).norm(dim=-1) / expected.norm(dim=-1)
            assert error.max() < 1e-3
            assert torch.equal(states[:, : expected.shape[-1]], expected[:, 0])  # boundary 0: rows of the embedding
        assert any(r.phase is Phase.VERIFY and len(r.positions) > 1 for r in records)  # drafts were accepted


@pytest.mark.parametrize("arm", ["chain", "tree"])
def test_the_draft_is_fed_the_states_that_the_target_computed(texts, folder, arm):
    """Round by round, bit for bit: the same positions, tokens and states on both sides of the row selection."""
    records = read_capture(folder / arm)
    for index in range(len(PROMPTS)):
        mine = [r for r in records if r.request == f"test-{index}"]
        out, fed = ([r for r in mine if r.phase is phase] for phase in (Phase.VERIFY, Phase.DRAFT_EXTEND))
        assert len(out) == len(fed) > 1
        for verified, extended in zip(out, fed, strict=True):
            assert verified.index < extended.index
            assert all(
                torch.equal(getattr(verified, name), getattr(extended, name))
                for name in ("positions", "token_ids", "states")
            )
    found = summarize(folder / arm)
    assert found.missing == () and found.truncated == "" and found.rows[Phase.VERIFY] == found.rows[Phase.DRAFT_EXTEND]
    assert json.loads((folder / arm / NOTE).read_text())["algorithm"] == "EAGLE3"


def test_the_override_of_the_draft_tokens_is_found(servers):
    info = servers.chain.client.server_info()
    rows = {row.name: row for row in asked_vs_resolved(ASKED, info)}
    assert (rows["draft tokens"].asked, rows["draft tokens"].resolved) == (8, 6)
    assert [row.name for row in asked_vs_resolved(None, info) if row.overridden] == ["draft tokens"]
    tree = asked_vs_resolved(TREE, servers.tree.client.server_info())
    assert [row.resolved for row in tree[:3]] == [3, 4, 8] and not [row for row in tree if row.overridden]


def test_an_idle_server_leaves_the_machine_to_the_other(servers):
    def used():
        return sum(sum(process.cpu_times()[:2]) for process in session(servers.chain_pid))

    servers.chain.client.generate([4, 5], 1)
    before, begin = used(), time.monotonic()
    while time.monotonic() - begin < 3:
        servers.tree.client.generate([6, 7, 8], 8)
    assert (used() - before) / (time.monotonic() - begin) < 0.3  # of one core; a spinning scheduler uses a whole one


def test_cache_and_metrics_answer(servers):
    servers.tree.client.flush_cache()
    assert "sglang:" in servers.tree.client.metrics()


def test_leaving_the_block_leaves_nothing(servers):
    processes = session(servers.tree.pid)
    shared = shared_memory(processes)
    assert len(processes) >= 3  # the server, its scheduler and its detokenizer
    servers.end_ours()
    assert session(servers.tree.pid) == set() and not [p for p in processes if p.is_running()]
    assert not [file for file in shared if Path(file).exists()]
    assert servers.chain.client.healthy()  # the other one still runs


def test_killing_the_owner_leaves_nothing(servers):
    processes = session(servers.chain_pid)
    shared = shared_memory(processes)
    assert len(processes) >= 3 and shared
    servers.owner.kill()
    servers.owner.wait()
    psutil.wait_procs(processes, timeout=10)
    assert session(servers.chain_pid) == set() and not [p for p in processes if p.is_running()]
    deadline = time.monotonic() + 5
    while [file for file in shared if Path(file).exists()] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [file for file in shared if Path(file).exists()]
    with pytest.raises(WiringError) as error:
        servers.chain.client.server_info()
    assert error.value.code == "server-unreachable"

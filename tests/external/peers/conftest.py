"""All peer cases are written, and each peer is run once over its cases, for the whole session."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items):
    """Everything here is a comparison with a peer."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.peers)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Tiny tensors gain nothing from threads; the peers' programs run on one as well."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A function from a peer's name to an empty folder; skips where the peers are not installed."""
    import peer_files

    if reason := peer_files.why_not():
        pytest.skip(reason)
    return tmp_path_factory.mktemp


@pytest.fixture(scope="session")
def specforge(folder):
    """Every SpecForge case by name: what was made, and what SpecForge says of it."""
    import peer_files
    import specforge_drafts

    cases = folder("specforge")
    made = {}
    for number, (name, case) in enumerate(specforge_drafts.CASES.items()):
        target, texts, config, tensors = specforge_drafts.build(case, 100 + 10 * number)
        (cases / name).mkdir()
        peer_files.write_target(cases / name / "target", target)
        peer_files.write_specforge_states(cases / name / "states", target, texts)
        settings = {"steps": case.steps, "batch": case.batch, "storage": case.storage}
        peer_files.write_draft(cases / name, config, peer_files.in_bfloat16(tensors), settings)
        made[name] = (cases / name, target, texts)
    peer_files.run_program("specforge_forward.py", cases)
    return made


@pytest.fixture(scope="session")
def speculators(folder):
    """Every speculators case by name: what was made, and what speculators says of it."""
    import peer_files
    import speculators_drafts

    cases = folder("speculators")
    made = {}
    for number, (name, case) in enumerate(speculators_drafts.CASES.items()):
        target, texts, layer, outer, tensors = speculators_drafts.build(case, 500 + 10 * number)
        (cases / name).mkdir()
        peer_files.write_target(cases / name / "target", target)
        peer_files.write_speculators_states(cases / name, texts)
        settings = {"steps": case.steps, "slots": len(case.ids), "speculator": outer}
        peer_files.write_draft(cases / name, layer, tensors, settings)
        made[name] = (cases / name, target, texts)
    peer_files.run_program("speculators_forward.py", cases)
    return made

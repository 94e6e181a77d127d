"""The source fix on the releases themselves: planned, written to a patched copy, compiled and run.

The trees hold the modules that the edits and the runs read. What the patched code serves is found by running it, with
the same stand-ins that hold the layer rules against the unpatched releases.
"""

from __future__ import annotations

import ast
import compileall
import hashlib
import subprocess
import zipfile
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import captured_states
import pytest
import torch
from release_source import SETTER, Release, function
from server_start import KEY, default_calls, served
from wheel_store import folder, wheel

from wiring.errors import WiringError
from wiring.patch.copies import copy_package
from wiring.patch.source import Refusal, SglangTree, check_sites, find_tree, needed_edits, prepare

pytestmark = [pytest.mark.releases, pytest.mark.timeout(1800)]

DEEPSEEK = "DeepseekV3ForCausalLM"
LAYERS = 61
CASE = [-1, 2, 30]

# By section of the table of releases: which sites need an edit for a DeepSeek target.
NEEDED = {
    "0.5.4.post2": "capture graph order",
    "0.5.6.post2": "capture graph order dummy",
    "0.5.7": "capture graph order dummy",
    "0.5.8": "capture graph dummy",
    "0.5.9": "capture graph dummy",
    "0.5.10.post1": "capture graph dummy",
    "0.5.11": "capture",
    "0.5.12.post1": "capture",
    "0.5.13": "setter capture",
    "0.5.13.post1": "setter capture",
    "0.5.14": "setter",
    "0.5.16": "setter",
    "0.5.17": "setter",
    "0.5.20": "setter",
    "0.5.21": "setter",
    "0.5.23": "setter",
}
LOOPS = [version for version, sites in NEEDED.items() if "capture" in sites]
LATE = [version for version, sites in NEEDED.items() if "order" in sites]

# 30 lists: none and empty, with -1 and without, the ends, each dialect's default, orders, repeats.
ID_LISTS = [
    None,
    [],
    CASE,
    [-1, 3, 31],
    [30, 2, -1],
    [-1],
    [-1, -1, 5],
    [-1, 0, 1],
    [0, 3, 31],
    [1, 29, 57],
    [1, 2, 3],
    [2, 30, 58],
    [3, 31, 59],
    [0],
    [1],
    [1, 1, 1],
    [2, 2, 30],
    [58, 30, 2],
    [30, 1, 58],
    [59, 60, 61],
    [61],
    [0, 1, 2],
    [5, 10, 15, 20],
    [1, 5, 10, 20],
    [-1, 5, 10, 20],
    [57],
    [60],
    [1, 60],
    [0, 60],
    [2, -1, 30],
]


class Unpacked(Release):
    """A release that lies unpacked, patched or not. Its modules are read once: make a new one after a change."""

    def __init__(self, package: Path, version: str):
        self.package, self.version = package, version

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(f"sglang/{path.relative_to(self.package).as_posix()}" for path in self.package.rglob("*.py"))

    def text(self, path: str) -> str:
        return (self.package / "srt" / path).read_text(encoding="utf-8-sig")


def unpack(version: str, to: Path) -> Path:
    """Lay out the modules that are read or edited; return the folder that holds the package."""
    folder().mkdir(parents=True, exist_ok=True)
    parts = ("sglang/version.py", "sglang/_version.py", "sglang/srt/models/", "sglang/srt/model_executor/")
    with zipfile.ZipFile(wheel(version)) as archive:
        for name in archive.namelist():
            if name.endswith(".py") and name.startswith((*parts, "sglang/srt/layers/aux_hidden_states")):
                archive.extract(name, to)
    return to


def bytes_of(package: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in package.rglob("*") if p.is_file()}


def config(ids: list[int] | None) -> dict:
    return {} if ids is None else {"eagle_config": {KEY: ids}}


def layers_set(setter: ast.FunctionDef, ids: list[int] | None) -> list[int]:
    """Run a setter on a stand-in model of 61 layers."""
    model = SimpleNamespace(
        pp_group=SimpleNamespace(is_last_rank=True),
        config=SimpleNamespace(num_hidden_layers=LAYERS),
        model=SimpleNamespace(layers_to_capture=[]),
    )
    function(setter)(model, ids)
    return list(model.model.layers_to_capture)


def patched_copy(tree: SglangTree, family: str, folder: Path) -> SglangTree:
    """Write the patched copy of `tree` to a folder, as `wiring patch apply` does."""
    copy_package(prepare(tree, family), folder / "sglang")
    return find_tree(folder)


@pytest.fixture(scope="module", params=NEEDED)
def patched(request, tmp_path_factory):
    """One release, and its patched copy."""
    version = request.param
    original = find_tree(unpack(version, tmp_path_factory.mktemp(f"before-{version}")))
    digests = bytes_of(original.package)
    copy = patched_copy(original, DEEPSEEK, tmp_path_factory.mktemp(f"after-{version}"))
    yield SimpleNamespace(
        version=version,
        original=original,
        copy=copy,
        change=prepare(original, DEEPSEEK),
        before=Unpacked(original.package, version),
        after=Unpacked(copy.package, version),
    )
    assert bytes_of(original.package) == digests


def test_there_are_30_id_lists():
    assert len({str(ids) for ids in ID_LISTS}) == len(ID_LISTS) == 30


def test_the_needed_sites_are_edited_and_no_others(patched):
    assert patched.copy.version == patched.version
    assert [edit.site.name for edit in patched.change.edits] == NEEDED[patched.version].split()
    assert all(check.stands for check in check_sites(patched.copy, patched.change.edits))
    assert not any(check.stands for check in check_sites(patched.original, patched.change.edits))
    now, before = (
        {Path(path).relative_to(tree.package): digest for path, digest in bytes_of(tree.package).items()}
        for tree in (patched.copy, patched.original)
    )
    assert now.keys() == before.keys()
    changed = {path.as_posix() for path in now if now[path] != before[path]}
    assert changed == {edit.site.path for edit in patched.change.edits}
    assert changed == {path.as_posix() for path in now if not (patched.copy.package / path).is_symlink()}


def test_the_patched_modules_compile(patched, tmp_path):
    for edit in patched.change.edits:
        source = patched.copy.file(edit.site.path)
        copy = tmp_path / source.name
        copy.write_bytes(source.read_bytes())
        assert compileall.compile_file(copy, quiet=1, force=True)


@pytest.mark.parametrize("tool", [("git", "apply"), ("patch", "-p1", "-s")], ids=["git", "patch"])
def test_the_patch_gives_the_same_files_with_both_tools(patched, tmp_path, tool):
    for file in patched.change.files:
        copy = tmp_path / "sglang" / file.path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.before)
    subprocess.run(tool, input=patched.change.patch().encode(), cwd=tmp_path, check=True, timeout=60)
    for file in patched.change.files:
        assert (tmp_path / "sglang" / file.path).read_bytes() == file.after


def test_the_setter_reads_minus_one_as_the_embedding_and_the_rest_as_before(patched):
    setters = [r.method("deepseek_v2", "DeepseekV2ForCausalLM", SETTER) for r in (patched.before, patched.after)]
    assert layers_set(setters[1], CASE) == [0, 3, 31]
    for ids in ID_LISTS:
        was, now = (layers_set(setter, ids) for setter in setters)
        assert now == ([id + 1 for id in ids] if ids and -1 in ids else was), ids


def test_the_case_is_served_in_prefill_and_verify_with_and_without_graphs(patched):
    for cuda_graphs in (True, False):
        ran = served(patched.after, DEEPSEEK, LAYERS, config(CASE), cuda_graphs=cuda_graphs)
        assert ran == ((0, 3, 31), (0, 3, 31), False)
    unpatched = served(patched.before, DEEPSEEK, LAYERS, config(CASE), cuda_graphs=True)
    assert (0, 3, 31) not in unpatched[:2]
    assert default_calls(patched.after) == []


def test_without_minus_one_prefill_is_as_before_and_verify_is_as_prefill(patched):
    for ids in ID_LISTS:
        if ids is None or -1 not in ids:
            was = served(patched.before, DEEPSEEK, LAYERS, config(ids), cuda_graphs=False)
            for cuda_graphs in (True, False):
                now = served(patched.after, DEEPSEEK, LAYERS, config(ids), cuda_graphs=cuda_graphs)
                # an id that means boundary 0 raised TypeError, and is served now
                assert now == was or (was[0] is None and now[0][0] == 0 and now[0] == now[1]), (ids, was, now)


def test_planned_again_there_is_nothing_to_do(patched):
    again = prepare(patched.copy, DEEPSEEK)
    assert again.diff() == again.patch() == "" and len(again.edits) == len(patched.change.edits)


class InPlaceLayer:
    """A layer whose norm adds to the residual in place, as the fused kernels do."""

    def __init__(self, index: int, returned: int):
        self.index, self.returned = index, returned

    def __call__(self, positions, hidden_states, forward_batch, residual, *_, **__):
        if residual is None:
            residual = hidden_states
        else:
            residual.add_(hidden_states)
        torch.manual_seed(self.index)
        output = torch.randn_like(hidden_states)
        return (output, residual, *[None] * (self.returned - 2))


def capture_with_torch(release: Release, layers_to_capture: list[int], embedding: torch.Tensor) -> list[torch.Tensor]:
    """Run the release's own loop over layers on tensors; what was captured, as it is after the last layer."""
    forward = release.method("deepseek_v2", "DeepseekV2Model", "forward")
    loops = [s for s in forward.body if isinstance(s, ast.For) and "layers_to_capture" in ast.unparse(s)]
    assert len(loops) == 1
    returned = len(captured_states._unpacked(forward))
    names = {name: MagicMock() for name in {n.id for n in ast.walk(loops[0]) if isinstance(n, ast.Name)}}
    names |= {"range": range, "normal_start_layer": 0, "normal_end_layer": LAYERS, "aux_hidden_states": []}
    names |= {"hidden_states": embedding, "residual": None}
    names["self"] = SimpleNamespace(
        layers=[InPlaceLayer(i, returned) for i in range(LAYERS)],
        layers_to_capture=layers_to_capture,
        enable_a2a_moe=False,
        first_k_dense_replace=3,
    )
    exec(compile(ast.Module([loops[0]], []), "loop", "exec"), names)
    return names["aux_hidden_states"]


@pytest.mark.parametrize("version", LOOPS)
def test_the_captured_embedding_is_not_overwritten(version, tmp_path):
    tree = find_tree(unpack(version, tmp_path))
    states = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    was = capture_with_torch(Unpacked(tree.package, version), [3, 31], states.clone())
    with pytest.raises(TypeError):
        capture_with_torch(Unpacked(tree.package, version), [0, 3, 31], states.clone())
    copy = patched_copy(tree, DEEPSEEK, tmp_path / "copy")
    run = states.clone()
    embedding, *others = capture_with_torch(Unpacked(copy.package, version), [0, 3, 31], run)
    assert torch.equal(embedding, states) and not torch.equal(
        run, states
    )  # the control: the tensor itself is overwritten
    assert all(torch.equal(a, b) for a, b in zip(others, was, strict=True))
    assert torch.equal(others[0], sum(_outputs(range(3), states), start=states))


def _outputs(indices, like: torch.Tensor):
    for index in indices:
        torch.manual_seed(index)
        yield torch.randn_like(like)


@pytest.mark.parametrize("version", LATE)
def test_ids_are_set_before_the_graphs_by_the_releases_own_statements(version, tmp_path):
    """What `initialize` and the graph runner do about ids and graphs, run in its order."""
    tree = find_tree(unpack(version, tmp_path))
    assert ids_at_capture(Unpacked(tree.package, version), CASE) == [None]  # Bug 2
    copy = patched_copy(tree, DEEPSEEK, tmp_path / "copy")
    assert ids_at_capture(Unpacked(copy.package, version), CASE) == [CASE]
    assert ids_at_capture(Unpacked(copy.package, version), None) == [None]


def ids_at_capture(release: Release, ids: list[int] | None) -> list:
    """The ids that were set last when each graph was captured."""
    runner = MagicMock()
    runner.device, runner.is_draft_worker = "cuda", False
    last, seen = [], []
    runner.model.set_eagle3_layers_to_capture = lambda given=None: last.append(given)
    graph_runner = release.tree("model_executor/cuda_graph_runner.py")
    (init,) = [
        method
        for node in graph_runner.body
        if isinstance(node, ast.ClassDef) and node.name == "CudaGraphRunner"
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
    ]
    (call,) = [n for n in ast.walk(init) if isinstance(n, ast.If) and any(SETTER in ast.unparse(s) for s in n.body)]

    def capture():
        exec(
            compile(ast.Module([call], []), "graphs", "exec"),
            {"self": SimpleNamespace(model_runner=runner), "model_runner": runner},
        )
        seen.append(last[-1])

    runner.init_device_graphs = runner.init_cuda_graphs = capture
    draft = SimpleNamespace(hf_config=SimpleNamespace(eagle_config={} if ids is None else {KEY: ids}))
    names = {"self": runner, "server_args": MagicMock(), "ModelConfig": MagicMock()}
    names["ModelConfig"].from_server_args.return_value = draft
    initialize = next(
        method
        for node in release.tree("model_executor/model_runner.py").body
        if isinstance(node, ast.ClassDef) and node.name == "ModelRunner"
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "initialize"
    )
    wanted = ("eagle_aux_hidden_state_layer_ids", "init_device_graphs()", "init_cuda_graphs()")
    statements = [s for s in initialize.body if any(name in ast.unparse(s) for name in wanted)]
    exec(compile(ast.Module(statements, []), "initialize", "exec"), names)
    return seen


@pytest.mark.parametrize("version", ["0.4.9", "0.5.9", "0.5.13", "0.5.20", "0.5.23"])
@pytest.mark.parametrize("architecture", [name for name in captured_states.MODELS if name != DEEPSEEK])
def test_other_families_serve_the_embedding_too(version, architecture, tmp_path):
    tree = find_tree(unpack(version, tmp_path))
    edits = needed_edits(tree, architecture)
    if isinstance(edits, Refusal):
        assert served(Unpacked(tree.package, version), architecture, 36, config(CASE), cuda_graphs=True)[0] is None
        with pytest.raises(WiringError):
            prepare(tree, architecture)
        return
    copy = patched_copy(tree, architecture, tmp_path / "copy")
    assert all(check.stands for check in check_sites(copy, edits))
    for cuda_graphs in (True, False):
        ran = served(Unpacked(copy.package, version), architecture, 36, config(CASE), cuda_graphs=cuda_graphs)
        assert ran == ((0, 3, 31), (0, 3, 31), False)


@pytest.mark.parametrize("version", ["0.4.6", "0.5.4.post1"])
def test_releases_without_the_method_are_refused(version, tmp_path):
    tree = find_tree(unpack(version, tmp_path))
    refusal = needed_edits(tree, DEEPSEEK)
    assert isinstance(refusal, Refusal) and "0.5.4.post2" in str(refusal)
    assert "no method" in str(needed_edits(tree, "deepseek_v2"))

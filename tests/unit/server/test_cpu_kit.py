"""The CPU kit acts only in processes with its switch, declares only what is missing there, and refuses the rest."""

from __future__ import annotations

import _ctypes
import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from wiring.capture.capture_plugin import DRAFT, FORWARD, REPLAY, SAMPLE
from wiring.capture.records import capture_environment
from wiring.engines.sglang import SUPPORTED
from wiring.errors import WiringError
from wiring.server.cpu import launcher
from wiring.server.cpu.launcher import cpu_environment, installed_sglang, require_sglang

SWITCHES = ("WIRING_SGLANG_CPU", "WIRING_CAPTURE_DIR", "WIRING_EMBEDDING_ID")
# Without triton SGLang's attention modules cannot be imported: take the kit's stand-in, then remove all traces of it.
STAND_INS = """
import os
os.environ["WIRING_SGLANG_CPU"] = "1"
import wiring.server.cpu.serve
del os.environ["WIRING_SGLANG_CPU"]
for name in [name for name in sys.modules if name.partition(".")[0] == "wiring"]:
    del sys.modules[name]
"""
KIT = "import wiring.server.cpu.serve"


def plain_environment() -> dict[str, str]:
    """This process's environment without the kit's variables, with `lib/` on the path as after an installation."""
    environment = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    lib = str(Path(launcher.__file__).parents[3])
    path = os.pathsep.join([lib, *filter(None, [environment.get("PYTHONPATH")])])
    return {**environment, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


def report_of(code: str, environment: dict[str, str]) -> dict:
    """Run `code`, which prints a JSON value as the last line of stderr."""
    result = run([sys.executable, "-c", code], environment)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stderr.strip().splitlines()[-1])


# SGLang's own loader loads every installed plugin and ignores their exceptions, so the effects are reported.
LOAD = """
import json, sys
{before}
from sglang.srt import plugins
plugins.load_plugins()
{after}
print(json.dumps(report), file=sys.stderr)
"""

REPORT = """
from sglang.srt.layers.attention import attention_registry
from sglang.srt.plugins.hook_registry import HookRegistry
report = {
    "loaded": sorted(name for name, _ in plugins.load_plugins_by_group(plugins.GENERAL_PLUGINS_GROUP).items()),
    "ours": sorted(name for name in sys.modules if name.partition(".")[0] in ("wiring", "wiring_plugins")),
    "torch_native": attention_registry.ATTENTION_BACKENDS["torch_native"].__module__,
    "sgl_kernel": getattr(sys.modules.get("sgl_kernel"), "__file__", None),
    "hooks": sorted(HookRegistry._hooks),
}
"""


@pytest.fixture(scope="module")
def installed():
    entries = {entry.name: entry.value for entry in metadata.entry_points(group="sglang.srt.plugins")}
    assert entries.get("wiring_cpu") == "wiring_plugins:cpu", "install the project: pip install -e . --no-deps"


def test_a_server_without_the_switch_imports_nothing_of_the_kit(installed):
    report = report_of(LOAD.format(before=STAND_INS, after=REPORT), plain_environment())
    assert {"wiring_cpu", "wiring_capture", "wiring_embedding_id"} <= set(report["loaded"])
    assert report["ours"] == ["wiring_plugins"]
    assert report["torch_native"] == "sglang.srt.layers.attention.attention_registry"
    assert report["sgl_kernel"] is None
    assert report["hooks"] == []


def test_with_the_switch_the_plugin_registers(installed):
    report = report_of(LOAD.format(before=KIT, after=REPORT), cpu_environment(plain_environment()))
    assert report["torch_native"] == "wiring.server.cpu.torch_native"
    assert Path(report["sgl_kernel"]).is_relative_to(launcher.KERNELS)
    assert report["hooks"] == ["sglang.srt.speculative.draft_utils.DraftBackendFactory._create_backend"]
    assert not any(name.startswith(("wiring.patch", "wiring.capture.records")) for name in report["ours"])


CAPTURE_REPORT = """
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.speculative import eagle_utils, eagle_worker_common
sample = eagle_utils.eagle_sample
report = {
    "applied": sorted(HookRegistry._patched),
    "handed_on": hasattr(sample, "__wrapped__") and eagle_worker_common.eagle_sample is sample,
}
"""


def test_with_the_switch_of_the_capture_its_hooks_are_applied(installed, tmp_path):
    environment = cpu_environment(plain_environment()) | capture_environment(tmp_path, drafts=True)
    report = report_of(LOAD.format(before=KIT, after=CAPTURE_REPORT), environment)
    assert {FORWARD, SAMPLE, DRAFT} <= set(report["applied"]) and REPLAY not in report["applied"]
    assert report["handed_on"] is True  # verify calls the hooked function
    assert list(tmp_path.iterdir()) == []  # nothing is written before a request


def test_the_function_hooked_on_a_gpu_exists_in_this_release():
    """Its module cannot be imported without CUDA, so the source is read."""
    module, of_class, method = REPLAY.rsplit(".", 2)
    source = metadata.distribution("sglang").locate_file(module.replace(".", "/") + ".py").read_text()
    (found,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == of_class]
    (hooked,) = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == method]
    assert [argument.arg for argument in hooked.args.args][:2] == ["self", "forward_batch"]


def test_the_cpu_kernels_cannot_be_imported_without_the_switch():
    result = run([sys.executable, "-c", "import sgl_kernel; print(sgl_kernel.__file__)"], plain_environment())
    assert str(launcher.KERNELS) not in result.stdout
    on_path = {**plain_environment(), "PYTHONPATH": str(launcher.KERNELS)}
    result = run([sys.executable, "-c", "import sgl_kernel"], on_path)
    assert result.returncode != 0 and "ImportError" in result.stderr and "WIRING_SGLANG_CPU=1" in result.stderr


def test_the_environment_extends_a_copy():
    base = {"PYTHONPATH": "/a" + os.pathsep + "/b", "HOME": "/h", "CUDA_VISIBLE_DEVICES": "0"}
    before = dict(base)
    made = cpu_environment(base)
    assert base == before
    assert made["PYTHONPATH"].split(os.pathsep)[0] == str(launcher.KERNELS)
    assert made["PYTHONPATH"].split(os.pathsep)[-2:] == ["/a", "/b"]
    assert made["HOME"] == "/h" and made["CUDA_VISIBLE_DEVICES"] == ""
    assert cpu_environment(made) == made


def test_importing_the_launcher_is_light():
    code = "import json, sys, wiring.server.cpu.launcher; heavy = {'torch', 'sglang'} & set(sys.modules); "
    assert report_of(f"{code}print(json.dumps(list(heavy)), file=sys.stderr)", plain_environment()) == []


@pytest.mark.parametrize(
    "found, code", [("0.5.22", "sglang-unsupported"), ("0.5.23.post1", "sglang-unsupported"), (None, "sglang-missing")]
)
def test_another_release_is_refused(found, code):
    assert installed_sglang() == SUPPORTED
    require_sglang(SUPPORTED)
    with pytest.raises(WiringError) as error:
        require_sglang(found)
    assert (error.value.code, error.value.expected, error.value.found) == (code, "0.5.23", found or "")


def test_the_server_refuses_another_release_before_it_imports_anything(tmp_path):
    other = tmp_path / "sglang-0.5.24.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.24\n")
    environment = cpu_environment({**plain_environment(), "PYTHONPATH": str(tmp_path)})
    result = run(launcher.cpu_command(sys.executable, ["--model-path", "nowhere"]), environment)
    assert result.returncode == 1
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("sglang: ") and "(expected 0.5.23, found 0.5.24)" in line


def test_the_server_refuses_to_start_without_its_environment():
    result = run(launcher.cpu_command(sys.executable, ["--model-path", "nowhere"]), plain_environment())
    assert result.returncode == 1
    assert result.stderr.startswith("WIRING_SGLANG_CPU: ") and "Traceback" not in result.stderr


BOOTED = """
import json, sys
import wiring.server.cpu.serve as serve
import torch, triton
print(json.dumps({
    "finders": sum(finder is serve._TRITON for finder in sys.meta_path),
    "triton": triton.__file__ if hasattr(triton, "__file__") else "stand-in",
    "nms": hasattr(torch.ops.torchvision, "nms"),
}), file=sys.stderr)
"""


def booted(path: Path) -> dict:
    return report_of(BOOTED, cpu_environment({**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(path)}))


def fake_package(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("")


def test_packages_that_work_are_left_alone(tmp_path):
    """As with PyPI's torch: a triton package is installed, and torchvision's library loads."""
    fake_package(tmp_path, "triton")
    fake_package(tmp_path, "torchvision")
    shutil.copy(_ctypes.__file__, tmp_path / "torchvision" / "_C.so")  # a library that loads
    assert booted(tmp_path) == {"finders": 0, "triton": str(tmp_path / "triton" / "__init__.py"), "nms": False}


def test_operators_are_declared_for_a_torchvision_with_a_broken_library(tmp_path):
    fake_package(tmp_path, "torchvision")
    (tmp_path / "torchvision" / "_C.so").write_bytes(b"linked against something else")
    assert booted(tmp_path)["nms"] is True


def test_nothing_is_declared_for_a_missing_torchvision(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "real = util.find_spec\n"
        "util.find_spec = lambda name, package=None: None if name == 'torchvision' else real(name, package)\n"
    )
    assert booted(tmp_path)["nms"] is False


TRITON = """
import json, sys
import wiring.server.cpu.serve as serve
serve.prepare()
import triton, triton.language as tl
from triton.runtime.jit import JITFunction

@triton.jit
def plain(x, BLOCK: tl.constexpr): return x

@triton.autotune(configs=[triton.Config({"BLOCK": 64}, num_warps=4)], key=["n"])
@triton.jit(do_not_specialize=["x"])
def tuned(x): return x

class Own(JITFunction): pass

report = [plain(3, 0), tuned(4), triton.cdiv(7, 2), [triton.next_power_of_2(n) for n in (0, 1, 5, 8)],
          sum(finder is serve._TRITON for finder in sys.meta_path)]
print(json.dumps(report), file=sys.stderr)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="triton is installed here")
def test_triton_stand_in():
    """Decorators return the function, dotted modules import, classes can be subclassed, helpers compute."""
    assert report_of(TRITON, cpu_environment(plain_environment())) == [3, 4, 4, [1, 1, 8, 8], 1]


UNSUPPORTED = """
import json, sys, types
import wiring.server.cpu.serve
from wiring.server.cpu.torch_native import CpuAttention, CpuDraftAttention, _DraftStep
from wiring.errors import WiringError
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.model_executor.forward_batch_info import ForwardMode

def refusal(call):
    try:
        call()
    except WiringError as problem:
        return [problem.code, problem.where, problem.found]

layer = types.SimpleNamespace(
    sliding_window_size=128, is_cross_attention=False, attn_type=AttentionType.DECODER, logit_cap=0.0, layer_id=7
)
batch = types.SimpleNamespace(encoder_lens=None, forward_mode=ForwardMode.TARGET_VERIFY)
report = [
    refusal(lambda: CpuDraftAttention(types.SimpleNamespace(page_size=16), 4, 3)),
    refusal(lambda: CpuAttention.__new__(CpuAttention).forward_extend(None, None, None, layer, batch)),
    refusal(lambda: _DraftStep.__new__(_DraftStep).forward_decode(None, None, None, layer, batch)),
]
print(json.dumps(report), file=sys.stderr)
"""


def test_attention_that_the_kit_cannot_compute_is_refused():
    tree, verify, draft = report_of(UNSUPPORTED, cpu_environment(plain_environment()))
    assert tree == ["tree-with-pages-on-cpu", "--page-size", "16"]
    assert verify[:2] == ["attention-unsupported-on-cpu", "layer 7"] and "sliding window 128" in verify[2]
    assert draft == verify

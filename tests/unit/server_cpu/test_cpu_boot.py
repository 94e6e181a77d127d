"""The boot module declares what is missing and nothing else; what the kit cannot serve it refuses in words."""

from __future__ import annotations

import _ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys

import pytest

from wiring.server.cpu.launcher import cpu_environment


def run(code: str, path: str = "") -> dict:
    """Run `code` in a process with a CPU server's environment; it prints a JSON object last."""
    environment = cpu_environment({**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path})
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.strip().splitlines()[-1])


REPORT = """
import json, sys
import wiring.server.cpu.boot as boot
import torch, triton
print(json.dumps({
    "finders": sum(finder is boot._TritonStandIn for finder in sys.meta_path),
    "triton": triton.__file__ if hasattr(triton, "__file__") else "stand-in",
    "nms": hasattr(torch.ops.torchvision, "nms"),
}))
"""


def fake_package(folder, name: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("")


def test_what_is_there_is_left_alone(tmp_path):
    """As beside PyPI's torch: a triton package is installed, and torchvision's library loads."""
    fake_package(tmp_path, "triton")
    fake_package(tmp_path, "torchvision")
    shutil.copy(_ctypes.__file__, tmp_path / "torchvision" / "_C.so")  # a library that loads
    report = run(REPORT, str(tmp_path))
    assert report == {"finders": 0, "triton": str(tmp_path / "triton" / "__init__.py"), "nms": False}


def test_a_torchvision_whose_library_does_not_load_is_helped(tmp_path):
    fake_package(tmp_path, "torchvision")
    (tmp_path / "torchvision" / "_C.so").write_bytes(b"linked against something else")
    assert run(REPORT, str(tmp_path))["nms"] is True


def test_a_missing_torchvision_stays_missing(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "real = util.find_spec\n"
        "util.find_spec = lambda name, package=None: None if name == 'torchvision' else real(name, package)\n"
    )
    assert run(REPORT, str(tmp_path))["nms"] is False


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="triton is installed here")
def test_triton_stand_in():
    """Decorators hand back the function, dotted modules import, classes can be subclassed, helpers compute."""
    report = run(
        """
import json
import wiring.server.cpu.boot as boot
boot.boot()
import triton, triton.language as tl
from triton.runtime.jit import JITFunction

@triton.jit
def plain(x, BLOCK: tl.constexpr): return x

@triton.autotune(configs=[triton.Config({"BLOCK": 64}, num_warps=4)], key=["n"])
@triton.jit(do_not_specialize=["x"])
def tuned(x): return x

class Own(JITFunction): pass

import sys
print(json.dumps([plain(3, 0), tuned(4), triton.cdiv(7, 2), [triton.next_power_of_2(n) for n in (0, 1, 5, 8)],
                  sum(finder is boot._TritonStandIn for finder in sys.meta_path)]))
"""
    )
    assert report == [3, 4, 4, [1, 1, 8, 8], 1]


def test_what_the_attention_cannot_serve_is_refused():
    report = run(
        """
import json, types
import wiring.server.cpu.boot
from wiring.server.cpu.torch_native import CpuAttention, CpuDraftAttention, _DraftStep
from wiring.errors import WiringError
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.model_executor.forward_batch_info import ForwardMode

def told(call):
    try:
        call()
    except WiringError as problem:
        return str(problem)

layer = types.SimpleNamespace(
    sliding_window_size=128, is_cross_attention=False, attn_type=AttentionType.DECODER, logit_cap=0.0, layer_id=7
)
batch = types.SimpleNamespace(encoder_lens=None, forward_mode=ForwardMode.TARGET_VERIFY)
print(json.dumps([
    told(lambda: CpuDraftAttention(types.SimpleNamespace(page_size=16), 4, 3)),
    told(lambda: CpuAttention.__new__(CpuAttention).forward_extend(None, None, None, layer, batch)),
    told(lambda: _DraftStep.__new__(_DraftStep).forward_decode(None, None, None, layer, batch)),
]))
"""
    )
    assert report[0].startswith("--page-size: the CPU kit drafts trees on a KV pool of single tokens only")
    assert report[1].startswith("layer 7: the CPU kit cannot draft or verify with this kind of attention layer")
    assert "sliding window 128" in report[1] and report[2] == report[1]

"""Main script of the CPU server: `python -m wiring.server.cpu.serve <SGLang's flags>`.

Importing this module prepares the process for SGLang on a CPU. The server's children are spawned, which imports the
main script again before their own work, so they are prepared too. Only what is missing is declared: triton with the CPU
build of torch, and torchvision's operators with a torchvision that is linked against CUDA.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types

from wiring.errors import WiringError
from wiring.model.torchvision_operators import declare_torchvision_operators
from wiring.server.cpu.launcher import SWITCH, installed_sglang, require_sglang


def prepare() -> None:
    """Prepare this process for SGLang on a CPU; harmless when repeated.

    Raises:
        WiringError: SGLang is not the supported release, or the environment is not that of
            `launcher.cpu_environment` ("cpu-environment-missing").
    """
    require_sglang(installed_sglang())
    if os.environ.get(SWITCH) != "1":
        raise WiringError(
            "the CPU server was started without its environment",
            code="cpu-environment-missing",
            where=SWITCH,
            expected=1,
            found=os.environ.get(SWITCH, ""),
            remedy="Start it through wiring, or with the environment of wiring.server.cpu.launcher.cpu_environment",
        )
    if importlib.util.find_spec("triton") is None:
        sys.meta_path.append(_TRITON)
    declare_torchvision_operators()


class _Inert(types.ModuleType):
    """A module in which every attribute exists, and every decorator returns the function that it decorates."""

    __path__: list[str] = []

    def __init__(self, name: str):
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, _TRITON, is_package=True)

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        # Capitalized names are used as base classes and in isinstance checks.
        value = type(name, (), {}) if name[0].isupper() else _Inert(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args, **kwargs):
        is_decorated = len(args) == 1 and callable(args[0]) and not kwargs
        return args[0] if is_decorated else lambda function: function


class _TritonStandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import finder and loader of `triton` and its submodules.

    SGLang defines Triton kernels at import on every platform, but launches none on a CPU.
    """

    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] == "triton":
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Inert(spec.name)

    def exec_module(self, module) -> None:
        if module.__name__ == "triton":  # functions that are called at import or by torch
            vars(module).update(
                __version__="3.0.0",
                cdiv=lambda a, b: -(a // -b),
                next_power_of_2=lambda n: 1 << (n - 1).bit_length() if n > 0 else 1,
                Config=lambda kwargs=None, **options: kwargs,
            )


_TRITON = _TritonStandIn()

try:
    prepare()
except WiringError as problem:
    sys.exit(str(problem))


def main(flags: list[str]) -> None:
    """Serve until a signal ends the server; end its children in any case."""
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    try:
        run_server(prepare_server_args(flags))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])

"""What a CPU server's process needs before SGLang is imported; importing this module does it.

Children of the server are spawned: they run the main script's imports again, and this module with
them. It declares only what is missing, so that it works beside the CPU build of torch (no triton;
torchvision's own operators do not load, since PyPI's torchvision is linked against CUDA) and beside
PyPI's torch on a machine without a GPU (both load).
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import types

from wiring.errors import WiringError
from wiring.model.torchvision_operators import declare_torchvision_operators
from wiring.server.cpu.launcher import SWITCH


def boot() -> None:
    """Prepare this process for SGLang on a CPU. Harmless when repeated.

    Raises:
        WiringError: the environment was not made by `launcher.cpu_environment`.
    """
    if os.environ.get(SWITCH) != "1":
        raise WiringError(
            "the CPU server was started without its environment",
            where=SWITCH,
            expected=1,
            found=os.environ.get(SWITCH, ""),
            remedy="Start it through wiring, or with the environment of wiring.server.cpu.launcher.cpu_environment",
        )
    if importlib.util.find_spec("triton") is None:
        sys.meta_path.append(_TritonStandIn)
    declare_torchvision_operators()


class _Inert(types.ModuleType):
    """A module whose every attribute exists and whose decorators hand back what they decorate."""

    __path__: list[str] = []

    def __init__(self, name: str):
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, _TritonStandIn, is_package=True)

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        # Capitalised names are used as base classes and in isinstance checks.
        value = type(name, (), {}) if name[0].isupper() else _Inert(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args, **kwargs):
        is_decorated = len(args) == 1 and callable(args[0]) and not kwargs
        return args[0] if is_decorated else lambda function: function


class _TritonStandIn:
    """An import finder and loader that answers for `triton` and everything below it.

    SGLang defines Triton kernels at import, on every platform. On a CPU it launches none of them,
    so their decorators need only exist.
    """

    @classmethod
    def find_spec(cls, name: str, path=None, target=None):
        if name.partition(".")[0] == "triton":
            return importlib.machinery.ModuleSpec(name, cls, is_package=True)
        return None

    @staticmethod
    def create_module(spec: importlib.machinery.ModuleSpec) -> _Inert:
        return _Inert(spec.name)

    @staticmethod
    def exec_module(module: _Inert) -> None:
        if module.__name__ == "triton":  # plain functions that are called at import or by torch
            module.__version__ = "3.0.0"
            module.cdiv = lambda a, b: -(a // -b)
            module.next_power_of_2 = lambda n: 1 << (n - 1).bit_length() if n > 0 else 1
            module.Config = lambda kwargs=None, **options: kwargs


boot()

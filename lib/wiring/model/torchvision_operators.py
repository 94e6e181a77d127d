"""Make torchvision importable with a torch build that its compiled library does not match.

PyPI's torchvision is linked against CUDA and does not load with the CPU build of torch. Its operators are then unknown,
and `import torchvision` fails at the first fake kernel ("operator torchvision::nms does not exist"), as does the import
of any model of transformers and of SGLang. The operators are never called, so it is enough to declare them.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os

_OPERATORS = ("nms", "qnms")

_declared: list = []
"""torch.library.Library objects; a declaration is removed with its library object."""


def declare_torchvision_operators() -> None:
    """Declare the operators that torchvision's import refers to, where its compiled library does not load.

    Call it before the first import of a transformers model or of SGLang. Does nothing where torchvision is missing or
    its library loads, and nothing when repeated.
    """
    import torch

    found = importlib.util.find_spec("torchvision")
    if _declared or found is None or _library_loads(found.submodule_search_locations or []):
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in _OPERATORS:
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)


def _library_loads(folders: list[str]) -> bool:
    """Load torchvision's compiled operators; return whether they match this torch."""
    import torch

    for folder in folders:
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            library = os.path.join(folder, f"_C{suffix}")
            if os.path.exists(library):
                try:
                    torch.ops.load_library(library)
                except OSError:
                    return False
                return True
    return False

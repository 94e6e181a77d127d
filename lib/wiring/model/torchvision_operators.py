"""Lets torchvision be imported beside a torch that its compiled library was not built for.

PyPI's torchvision is linked against CUDA. Beside the CPU build of torch its library does not load, so
that its operators are unknown and `import torchvision` stops at the first fake kernel that it registers
("operator torchvision::nms does not exist"), and with it the import of any model of transformers and
of SGLang. Nothing here calls those operators: to declare them is enough.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os

_OPERATORS = ("nms", "qnms")

_declared: list = []
"""torch.library.Library objects: a declaration lasts as long as its library object."""


def declare_torchvision_operators() -> None:
    """Declare the operators that torchvision's import refers to, where its own library does not load.

    Call it before the first import of a transformers model or of SGLang. Does nothing where torchvision
    is not installed or works as it is, and nothing when repeated.
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
    """Whether torchvision's compiled operators can be loaded beside this torch; loads them if so."""
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

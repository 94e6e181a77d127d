"""Every name that a package offers in its `__init__` can be loaded."""

import importlib
import pkgutil

import pytest

import wiring

PACKAGES = [module.name for module in pkgutil.iter_modules(wiring.__path__, "wiring.") if module.ispkg]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_offered_name_can_be_loaded(name):
    package = importlib.import_module(name)
    missing = [each for each in getattr(package, "__all__", ()) if getattr(package, each, None) is None]
    assert missing == []

"""What the recipes of the documentation need: too large for the environment of all tests."""

import importlib
import os

import pytest


def need(module: str) -> object:
    """Import a module of the extras docs and recipes; skip the test if it is not installed.

    `make test-recipes` has installed them: there a missing one is a failure.
    """
    if os.environ.get("RECIPES_REQUIRED"):
        return importlib.import_module(module)
    return pytest.importorskip(module)

"""Which servers a test needs, by its marks."""

import pytest

FROM_PIP = {"moto", "postgresql"}
"""Servers that come with the environment; the others need Node.js, Go or Maven."""


def servers_of(item: pytest.Item) -> set[str]:
    """Return the names of the servers that a test is marked with."""
    return {name for mark in item.iter_markers("server") for name in mark.args}

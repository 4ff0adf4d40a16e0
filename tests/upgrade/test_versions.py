"""The order of versions, and this program's own."""

from __future__ import annotations

from itertools import pairwise

import pytest

from jobd_mcp import versions

IN_ORDER = (
    "0.1.0.dev1", "0.1.0a1.dev2", "0.1.0a1", "0.1.0b2", "0.1.0rc1", "0.1.0", "0.1.0.post1", "0.1.1", "0.2.0.dev3",
    "0.2", "0.10.0", "1.0.0rc1", "1.0.0", "1!0.1",
)  # fmt: skip


@pytest.mark.parametrize(("one", "other"), list(pairwise(IN_ORDER)))
def test_versions_are_in_the_order_of_python_packages(one: str, other: str) -> None:
    assert versions.older(one, other)
    assert not versions.older(other, one)


@pytest.mark.parametrize(
    ("one", "other"), [("0.1", "0.1.0"), ("1.0.0+local", "1.0.0"), ("v1.0-rc.1", "1.0rc1"), ("1.0", "1.0")]
)
def test_what_is_the_same_is_not_older(one: str, other: str) -> None:
    assert not versions.older(one, other)
    assert not versions.older(other, one)


@pytest.mark.parametrize("text", ["", "None", "main", "1.0 beta", "../1.0", "1..0"])
def test_what_is_no_version_is_neither_older_nor_newer(text: str) -> None:
    assert not versions.older(text, "99.0")
    assert not versions.older("0.0.1", text)
    assert not versions.older_than_ours(text)
    assert not versions.newer_than_ours(text)


def test_our_own_version_is_neither() -> None:
    assert not versions.older_than_ours(versions.own())
    assert not versions.newer_than_ours(versions.own())
    assert versions.older_than_ours("0.0.1")
    assert versions.newer_than_ours("999.0")

from __future__ import annotations

import pytest

from support.requirements import need_gpu


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def _a_gpu() -> None:
    need_gpu()

"""Any order of what clients and workers may do, on a bad wire: what may be believed holds after every step."""

from __future__ import annotations

import pytest

from support.machines.operations import Operations
from support.machines.running import tell


@pytest.mark.guarantee("G3", "G5", "G6", "G7", "G10", "G12", "G17", "G24")
def test_what_may_be_believed_holds_after_every_step_of_any_story() -> None:
    tell(Operations, 100, 50)

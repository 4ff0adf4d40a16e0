"""Everything at once: kills, freezes, cuts, lost answers and torn logs, while jobs come and go."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import pytest

from support.campaign import FAULTS, Campaign
from support.fleet import Fleet


@pytest.fixture
def say(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Loud where output is not captured, as in a long run."""

    def aloud(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    return aloud


@pytest.mark.trial("B14")
@pytest.mark.timeout(0)
@pytest.mark.guarantee("G1", "G4", "G5", "G6", "G7", "G8", "G9", "G10", "G12", "G13", "G15")
async def test_no_job_is_lost_doubled_or_lied_about_whatever_dies(
    fleet: Fleet, pytestconfig: pytest.Config, say
) -> None:
    seed = pytestconfig.getoption("--seed")
    if seed is None:
        seed = random.SystemRandom().randrange(1_000_000)
    jobs, faults = pytestconfig.getoption("--jobs"), pytestconfig.getoption("--faults")
    say(f"seed {seed}: {jobs} jobs, {faults} faults (again: --seed {seed})")
    campaign = Campaign(fleet, seed, jobs, faults, say)
    await campaign.run()
    say(f"seed {seed} held: {len(campaign.ledger.asked)} jobs, {dict(campaign.done)}")
    assert len(campaign.ledger.asked) == jobs
    assert sum(campaign.done.values()) == faults
    assert set(campaign.done) <= {kind.__name__ for kind in FAULTS}

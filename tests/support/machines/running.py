"""How the machines are run: the same stories each time in the suite, ever new ones in a long run."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def tell(machine: type[RuleBasedStateMachine], stories: int, steps: int, *, anew: bool = False) -> None:
    """Tell `stories` of so many `steps`; raises what the first bad one raised, and how to tell that one again.

    `anew`: by chance (or by the `hypothesis.seed` of the machine), else always the same ones.
    """
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=stories,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=not anew,
            print_blob=True,
            phases=[Phase.generate, Phase.shrink] if anew else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )

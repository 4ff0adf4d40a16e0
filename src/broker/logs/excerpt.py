"""A few lines of a view inside a larger answer: cleaned and cut, without a frame."""

from __future__ import annotations

from broker.logs import cleaning, tokens
from broker.logs.reading import View

LONGEST_LINE = 200


def excerpt(view: View, budget: int) -> str:
    """The last lines of the view that fit into about `budget` tokens, at least one."""
    chosen: list[str] = []
    for shown in reversed(view.lines):
        text = cleaning.shortened(cleaning.clean(shown.line), LONGEST_LINE)
        budget -= tokens.estimate(text) + 1
        if budget < 0 and chosen:
            break
        chosen.append(text)
    return "\n".join(reversed(chosen))

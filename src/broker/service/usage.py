"""What projects have used, as the order sees it; folded now and then, so that it decays."""

from __future__ import annotations

from broker.core.order import DAY_MS, NOTHING, Terms
from broker.service.context import Broker
from broker.service.holding import hold, used_row
from broker.store.contract import Tx

FOLDS_A_HALF_LIFE = 200


def terms(broker: Broker) -> Terms:
    return Terms(broker.settings.usage_half_life_s, broker.settings.usage_gpu_weight)


def every_s(broker: Broker) -> float:
    return max(broker.settings.sweep_s, broker.settings.usage_half_life_s / FOLDS_A_HALF_LIFE)


async def fold(broker: Broker) -> None:
    """What was held since the last time starts to decay. Whoever has used next to nothing is forgotten."""
    listened = broker.listening.now_ms()

    def fn(tx: Tx) -> None:
        today = tx.now_ms // DAY_MS
        for row in tx.all("usages"):
            used = used_row(row)
            amount = terms(broker).amount(used, listened)
            hold(tx, row["owner"], 0, 0, listened)
            tx.run("fold_usage", owner=row["owner"], amount=amount, listened=listened)
            if amount < NOTHING and used.day != today:
                tx.run("forget_usage", owner=row["owner"])

    await broker.store.run(fn)

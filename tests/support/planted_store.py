"""Bugs planted into the store: each must be seen by a test, else that test sees nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from broker.store.batch import Committer, Outcome, Work


class AnswersBeforeItsCommit(Committer):
    """The commit of a group comes with the next one: callers and the listener hear of it too early."""

    def commit(self, connection: sqlite3.Connection, batch: Sequence[Work]) -> list[Outcome]:
        self._reserve.restore()
        if connection.in_transaction:
            connection.execute("COMMIT")
        connection.execute("BEGIN IMMEDIATE")
        return [self._under_savepoint(connection, work) for work in batch]


class RollsBackTheWholeGroup(Committer):
    """One function's error takes its neighbours with it."""

    def _under_savepoint(self, connection: sqlite3.Connection, work: Work) -> Outcome:
        outcome = super()._under_savepoint(connection, work)
        if hasattr(outcome, "error"):
            connection.execute("ROLLBACK")
            connection.execute("BEGIN IMMEDIATE")
        return outcome


class ForgetsThatSqliteGaveUp(Committer):
    """A full disk is taken for an error of one function, though it took the whole transaction."""

    def commit(self, connection: sqlite3.Connection, batch: Sequence[Work]) -> list[Outcome]:
        return self._together(connection, batch)


class HasNoReserve(Committer):
    """Nothing is given up on a full disk."""

    def _empty_wal(self, connection: sqlite3.Connection) -> None:
        pass

    def _alone(self, connection: sqlite3.Connection, work: Work) -> Outcome:
        self._reserve.held = False
        return super()._alone(connection, work)

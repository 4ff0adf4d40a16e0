"""What the rest of the broker may ask of its store: whole functions, run inside one transaction each.

`await store.run(fn)` runs `fn(tx)` from start to end on the store's own thread. Nothing can be awaited inside it, so a
cancelled request can't leave a transaction half done. `fn` must have no effect outside `tx`: it may be run again when a
full disk took its transaction away.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from broker.core.storage import StorageError, StorageFailed, StorageFull

__all__ = [
    "ConstraintFailed",
    "Listener",
    "Params",
    "Row",
    "StorageBusy",
    "StorageError",
    "StorageFailed",
    "StorageFull",
    "Store",
    "StoreUnusable",
    "Tx",
    "Value",
]

T = TypeVar("T")

Value = int | float | str | bytes | None
Params = Mapping[str, Value]
Listener = Callable[[list[object]], None]


class Row(Protocol):
    """One row of an answer: columns by name. What a column holds is known to the statement only, hence Any."""

    def __getitem__(self, column: str, /) -> Any: ...

    def keys(self) -> Collection[str]: ...


class Tx(Protocol):
    """One transaction, as seen by the function that runs in it. Statements are named in `sql/*.sql`.

    Raises `ConstraintFailed` for a row that the schema forbids; the function may catch that and go on. `StorageFull`
    and `StorageFailed` end the transaction: every later statement of the function raises the same again.
    """

    @property
    def now_ms(self) -> int:
        """The broker's wall clock at the start of this function, in milliseconds."""
        ...

    def one(self, name: str, /, **params: Value) -> Row | None:
        """The only row, or None. More than one row is a mistake of the statement and raises LookupError."""
        ...

    def all(self, name: str, /, **params: Value) -> list[Row]: ...

    def run(self, name: str, /, **params: Value) -> int:
        """Number of rows changed."""
        ...

    def insert(self, name: str, /, **params: Value) -> int:
        """First column of RETURNING, else the new row's id."""
        ...

    def run_many(self, name: str, rows: Sequence[Params]) -> int:
        """The same statement for each of `rows`; number of rows changed in all. No RETURNING."""
        ...

    def tell(self, notice: object) -> None:
        """Hand `notice` to the store's listener after the commit, in commit order; never if it is rolled back."""
        ...


class Store(Protocol):
    """Keeps what the broker promised. Both calls may be cancelled: that drops the waiter, not the transaction."""

    async def run(self, fn: Callable[[Tx], T], *, admits: bool = False) -> T:
        """Run `fn` in a write transaction and return its value once that is safe on disk.

        What `fn` raises is raised here, and only its own changes are undone. `admits`: the function lets new work in, so
        it is refused with `StorageFull` as soon as the disk is full; others may then use a reserve, so that work that
        was admitted can still end.
        """
        ...

    async def read(self, fn: Callable[[Tx], T]) -> T:
        """Run `fn` on a snapshot of what is committed. It can't change anything."""
        ...

    def listen(self, on_commit: Listener | None) -> None:
        """Who gets the notices from now on: called on the event loop, before the writers' own calls return."""
        ...

    async def close(self) -> None:
        """Finish what was asked for, then close. Later calls raise `StorageFailed`."""
        ...


class ConstraintFailed(StorageError):
    """The schema forbids this row: a double key, a missing parent, a failed check."""


class StoreUnusable(StorageError):
    """This database can't be opened by this program here; the text says why and what to do. `lasting`: nor will it be
    by another try."""

    def __init__(self, said: str, *, lasting: bool = True) -> None:
        super().__init__(said)
        self.lasting = lasting


class StorageBusy(StorageFailed):
    """Another program holds the database: nothing was done, and the same can be tried again."""

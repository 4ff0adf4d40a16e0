"""What can go wrong with a disk, in the words of those who keep things on it: the store and the logs."""

from __future__ import annotations


class StorageError(Exception):
    """What was asked could not be kept. Nothing of it was."""


class StorageFull(StorageError):
    """There is no room on the disk."""


class StorageFailed(StorageError):
    """The disk or the database failed, or the store is closed."""

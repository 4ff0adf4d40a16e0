"""Supervising processes. Standard library only: shims run a copy of these modules on the base interpreter."""

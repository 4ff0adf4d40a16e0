"""The real broker and the real workers on virtual time, with seeded faults. `python -m simulation --help`."""

"""What is decided: pure functions over rows. No clock, no chance, no I/O."""

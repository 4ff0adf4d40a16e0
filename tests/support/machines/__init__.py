"""State machines that drive the real broker by chance, and say what may be believed after each step."""

"""What is done: each module acts in one transaction at a time and asks `core` what to decide."""

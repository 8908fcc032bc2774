"""Whose instruction comes next, and what it must wait for: programs of closures, waves, wait states, deadlock."""

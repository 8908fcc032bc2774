"""Counts and courses as an estimated time. Reads what was counted; runs nothing."""

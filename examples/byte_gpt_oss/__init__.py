"""A byte-level gpt-oss: its checkpoint, and what trained it."""

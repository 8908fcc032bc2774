"""A byte-level DeepSeek V3: its checkpoint, and what trained it."""

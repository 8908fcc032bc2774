"""Global memory and LDS: the instructions that reach them, and which accesses may count on which others."""

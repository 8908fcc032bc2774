"""What a code object holds: kernels and their metadata, instructions as text, source lines. Knows only the faults."""

"""The machine code of the GPU variants."""

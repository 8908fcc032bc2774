"""What instructions compute, on the registers of a wave. Knows no memory and no schedule; its text is binary's."""

"""A byte-level OPT trained on the Python standard library: the model of the SmoothQuant example."""

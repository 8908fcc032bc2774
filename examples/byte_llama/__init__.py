"""A byte-level Llama trained on the Python standard library: the model that the demo serves."""

"""The package in models: layers, checkpoints, quantisation, decoding, the demo and its model."""

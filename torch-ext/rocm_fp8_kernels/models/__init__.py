"""Models whose linears are quantised: made of others, read from checkpoints, stored.

    fp8/          kernel.quantization: FP8 linears, and the decoder layers that are fused around them
    int8/         kernel.smoothquant: int8 modules, smoothing, the checkpoints of both
    checkpoints/  FP8 checkpoints in the formats of the ecosystem

Both have calibration (what a model's modules are given), codes (modules whose buffers are codes and scales) and
signatures (what a forward of transformers takes).
"""

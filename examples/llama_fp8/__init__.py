"""What demo.py does, step by step: text, decoding, quality, times of the operators, the plot."""

"""Problems: sizes and types, random inputs, references, guarded buffers, comparisons with derived tolerances.

Tests, benchmarks/simulate.py and the compute-sanitizer cases use them. A result that a benchmark or a sanitizer run
calls right has then passed the check of the tests. Nothing in here is a test or loads the package.
"""

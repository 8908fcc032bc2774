"""The simulator's clock held against published times of other people's kernels on an MI300X."""

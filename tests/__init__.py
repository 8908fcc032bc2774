"""The tests. They import benchmarks, scripts, examples and the simulator; none of those imports a test.

problems/ alone is shared: see its docstring.
"""

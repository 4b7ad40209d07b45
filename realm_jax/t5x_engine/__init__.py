"""t5x as an alternative engine, which `make t5x` installs.

No package registry has t5x.
"""

"""What a run needs of a TPU slice, from programs compiled without one.

`programs` has the programs of a run with abstract arrays, `topology` the
devices of a slice that need not exist, for which `compiler` compiles them with
libtpu, and `report` says whether they fit and how long they take at least.
"""

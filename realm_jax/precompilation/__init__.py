"""What a run costs on a TPU slice, from programs compiled without one.

`programs` traces the programs of a run with abstract arrays, `topology` gives
them the devices of a slice that need not exist, and libtpu compiles them.
`jaxpr_arithmetic` and `pallas_kernels` read the jaxpr, `hlo`, `traffic`,
`cycles` and `collectives` the compiled module, and `estimate` and
`refresh_split` turn both into times.
"""

"""Functions by which `jax.jit` finds what it has compiled in this process."""

import functools

# `functools.partial`, but equal arguments, which must be hashable, give the
# same function. What `jax.jit` compiles of it is then found again by the next
# run, evaluation or version of the corpus that has an equal module.
shared_partial = functools.lru_cache(maxsize=64)(functools.partial)

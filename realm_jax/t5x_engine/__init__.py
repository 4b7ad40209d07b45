"""t5x as another engine: the parts that `t5x.train.train` takes.

`t5x` has its own loop, trainer and partitioner. Here are the model, the infeed
and the checkpoints with which it trains our stages. Losses, optimizer,
candidates and the format of checkpoints are those of `realm_jax.train`, so that
sidecar, evaluation and our own loop read what a run of t5x has written.

t5x is in no package registry; `make t5x` adds it to the environment. Nothing
outside this folder imports it.
"""

"""A corpus built by many processes: parts, the plan of shards, and runners.

`parts` makes blocks of chunks of rows, in any order and anywhere; `plan` reads
their counts in the order of the input and decides what each shard holds; and
`shards` joins parts to shards. `in_process` and `beam` run the first and the
last step, so that they cannot give different corpora.
"""

"""A page that asks a trained run, shows its evidence and edits its blocks.

`service` answers requests as plain data; `edited_corpus`, `edited_index` and
`edited_generation` overlay edited blocks in memory; `worker` is the one thread
that computes; `app` speaks HTTP, and `server` listens. The page itself, HTML,
CSS and JavaScript, is in `page`.
"""

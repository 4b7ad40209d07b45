"""A training run: its loop, its step, and the parts that they take.

`config`, `setup`, `run`, `loop`, `candidates` and `decisions` are the run on
the host, and `step`, `stage_losses`, `batches`, `state`, `optimizer` and
`compilation` what the devices compute. A folder is a concern of its own.
"""

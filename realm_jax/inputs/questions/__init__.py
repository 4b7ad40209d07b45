"""Questions and their answers as seqio sources.

`json_lines` reads your own, `published` those of published data sets, from
their files or from TFDS.
"""

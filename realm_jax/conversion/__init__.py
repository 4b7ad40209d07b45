"""Weights, blocks and indexes of other systems, in and out.

Any function raises `ConversionError` for a foreign file that cannot be read or
does not fit, and for a choice of the user that does not fit the file; plans and
vocabularies raise `VocabularyError` for a vocabulary that cannot be used. A
docstring says what else is raised, or when, where that is not plain.
"""

"""The checker that jaxtyping's import hook applies to every annotation."""

from beartype import BeartypeConf, beartype

# As for a type checker, an int is a float (PEP 484).
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))

"""The base of the errors that a user can act on."""


class RealmError(ValueError):
  """An error that a user can act on; commands explain it in one line."""

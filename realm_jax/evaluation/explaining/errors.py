"""What cannot be explained."""


class ExplanationError(ValueError):
  """A sentence, an answer or a run that cannot be explained."""

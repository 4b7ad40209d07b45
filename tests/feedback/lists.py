"""The lists of a feedback log."""

from pathlib import Path

from realm_jax.feedback.examples import Feedback, FeedbackExamples


def lists_of(examples: FeedbackExamples) -> list[Feedback]:
  """Returns the lists of a split."""
  return [examples[number] for number in range(len(examples))]


def all_lists(directory: Path) -> list[Feedback]:
  """Returns the lists of both splits."""
  train = lists_of(FeedbackExamples(directory))
  return train + lists_of(FeedbackExamples(directory, "validation"))

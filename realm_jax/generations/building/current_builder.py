"""The builder of the corpus version in use."""

from collections.abc import Callable

from absl import logging

from realm_jax.corpus.errors import CorpusError
from realm_jax.corpus.store import Corpus
from realm_jax.generations.building.generation_builder import GenerationBuilder

_REMINDER_SECONDS = 30.0


class CurrentBuilder:
  """The builder of one version of a corpus, which another version replaces.

  A builder has arrays as long as the corpus, and what it has compiled, so that
  a worker keeps one.

  Args:
    corpus: Corpus, in the version to begin with.
    make_builder: Function that returns the builder of a version.
  """

  def __init__(
    self, corpus: Corpus, make_builder: Callable[[Corpus], GenerationBuilder]
  ):
    self._make_builder = make_builder
    self._builder = make_builder(corpus)

  def get(self) -> GenerationBuilder:
    """Returns the builder."""
    return self._builder

  def follow(self) -> None:
    """Goes on to the newest version, or logs why the corpus has none."""
    corpus = self._builder.corpus
    try:
      newest = corpus.newest()
    except CorpusError as error:
      logging.log_every_n_seconds(
        logging.WARNING,
        "staying with version %d of the corpus: %s",
        _REMINDER_SECONDS,
        corpus.version,
        error,
      )
      return
    if newest is not corpus:
      logging.info(
        "the corpus has version %d now, with %d blocks",
        newest.version,
        newest.num_blocks,
      )
      self._builder = self._make_builder(newest)

  def go_to(self, version: int, fingerprint: str) -> None:
    """Goes to the version that is named.

    Raises:
      CorpusError: The corpus has no such version.
    """
    corpus = self._builder.corpus.at(version, fingerprint)
    if corpus is not self._builder.corpus:
      self._builder = self._make_builder(corpus)

"""The corpus and the questions of each seed."""

import dataclasses
import json
import os
from pathlib import Path

from etils import epath

from experiments.world import names
from experiments.world import second_language as second_lib
from experiments.world import world as world_lib
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.manifest import MANIFEST_NAME
from realm_jax.corpus.store import Corpus
from realm_jax.errors import RealmError
from realm_jax.storage.json_files import write_json

CORPUS = "corpus"
# Corpora of one language, where there is a second one: the first language's
# documents, and those of the second.
HIGH_CORPUS, OWN_CORPUS = "high_corpus", "own_corpus"


@dataclasses.dataclass(frozen=True)
class GivenData:
  """One corpus and its questions, for all seeds.

  Attributes:
    corpus_dir: Corpus, as `build_corpus` wrote it.
    train_questions: Questions that open QA learns from.
    questions: Questions that all rows answer.
    sentences: Further queries for retrieval, in the format of questions.
  """

  corpus_dir: epath.PathLike
  train_questions: epath.PathLike
  questions: epath.PathLike
  sentences: epath.PathLike | None = None

  def files(self, folder: Path) -> "GivenData":
    """Returns where the data of the seed with this folder are."""
    del folder
    return self

  def prepare(self, folder: Path, seed: int) -> None:
    """Checks that all is there, and makes nothing.

    Raises:
      RealmError: Something is missing.
    """
    Corpus.open(self.corpus_dir)
    questions = (self.train_questions, self.questions, self.sentences)
    for given in filter(None, questions):
      path = os.fspath(given)
      if not path.startswith("tfds:") and not epath.Path(path).exists():
        raise RealmError(
          f"there are no questions {path}; want a file, or a folder of a "
          "published data set: change TRAIN_QUESTIONS, QUESTIONS or SENTENCES"
        )


@dataclasses.dataclass(frozen=True)
class GeneratedWorlds:
  """A generated world for each seed, as the demo's.

  Attributes:
    world: Settings of a world; its seed is the ablation's.
    block_length: Length of the corpus's blocks, in wordpieces.
    second_language: Second language, whose documents join the corpus; None
      for the first alone.
    sentences: File of the world with further queries for retrieval.
  """

  world: world_lib.WorldConfig
  block_length: int
  second_language: second_lib.SecondLanguageConfig | None = None
  sentences: str | None = None

  def files(self, folder: Path) -> GivenData:
    """Returns where the data of the seed with this folder are."""
    world = folder / "world"
    return GivenData(
      str(folder / CORPUS),
      str(world / "questions-train.jsonl"),
      str(world / "questions-test.jsonl"),
      None if self.sentences is None else str(world / self.sentences),
    )

  def prepare(self, folder: Path, seed: int) -> None:
    """Generates the world of a seed and its corpus, unless they are there.

    Raises:
      RealmError: The folder has a world of other settings.
    """
    config = dataclasses.replace(self.world, seed=seed)
    made_from, path = repr((config, self.block_length)), folder / "world.json"
    if self.second_language is not None:
      made_from += repr(self.second_language)
    if (folder / CORPUS / MANIFEST_NAME).exists():
      if (before := json.loads(path.read_text())) != made_from:
        raise RealmError(
          f"{folder} has a world of other settings, {before}, and not of "
          f"{made_from}; remove it, or choose another --output_dir"
        )
      return
    write_json(path, made_from)
    world = world_lib.generate(config)
    world_lib.write_world(folder / "world", world=world)
    first, more = ["articles.jsonl"], ()
    corpora = {CORPUS: first}
    if self.second_language is not None:
      second = second_lib.write_in_second_language(
        world, self.second_language, seed=seed
      )
      second_lib.write_files(folder / "world", world, second)
      own, more = [second_lib.ARTICLES], second.documents
      # The last one shows that all are there.
      corpora = {HIGH_CORPUS: first, OWN_CORPUS: own, CORPUS: [*first, *own]}
    world_lib.write_vocabulary(folder / "vocab.txt", world, more)
    for name, files in corpora.items():
      summary = build_corpus(
        [str(folder / "world" / file) for file in files],
        folder / name,
        vocab=str(folder / "vocab.txt"),
        block_length=self.block_length,
        tagger=names.tag,
        overwrite=True,
      )
      print(summary.table(), flush=True)


# Corpus and questions of each seed, which may be the same for all.
Data = GivenData | GeneratedWorlds

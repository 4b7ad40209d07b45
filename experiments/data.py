"""Corpora and questions of experiments: existing ones, or generated worlds."""

import dataclasses
import json
import os
import shlex
from pathlib import Path
from typing import Any

from etils import epath

from experiments.world import world as world_lib
from experiments.world.chains import (
  ChainConfig,
  add_chains,
  write_questions,
)
from experiments.world.second_language import (
  CODE,
  SecondLanguageConfig,
  write_in_second_language,
)
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.manifest import MANIFEST_NAME
from realm_jax.corpus.store import Corpus
from realm_jax.errors import RealmError
from realm_jax.storage.json_files import json_lines, write_json

CORPUS = "corpus"
# Corpora of a single language, if there are two: the documents of the first
# language, and the documents of the second one.
HIGH_CORPUS, OWN_CORPUS = "high_corpus", "own_corpus"
_VOCABULARY = "vocab.txt"
_ARTICLES = "world/articles.jsonl"
_OWN_ARTICLES = "world/articles-second.jsonl"
# Also finds the kinds of names, like the paper's tagger.
_TAGGER = "experiments.world.names.tag"


@dataclasses.dataclass(frozen=True)
class GivenData:
  """One corpus and its questions, for all seeds.

  Attributes:
    corpus_dir: Corpus, as `build_corpus` wrote it.
    train_questions: Training questions for open QA.
    questions: Test questions for all rows.
    sentences: Further queries for retrieval, in the format of questions.
  """

  corpus_dir: epath.PathLike
  train_questions: epath.PathLike
  questions: epath.PathLike
  sentences: epath.PathLike | None = None

  def files(self, folder: Path) -> "GivenData":
    """Returns the data of the seed with this folder."""
    del folder
    return self

  def prepare(self, folder: Path, seed: int) -> None:
    """Raises a `RealmError` if a file is missing; creates nothing."""
    Corpus.open(self.corpus_dir)
    questions = (self.train_questions, self.questions, self.sentences)
    for file in filter(None, questions):
      path = os.fspath(file)
      if not path.startswith("tfds:") and not epath.Path(path).exists():
        raise RealmError(
          f"there are no questions {path}; want a file, or a folder of a "
          "published data set: change TRAIN_QUESTIONS, QUESTIONS or SENTENCES"
        )


@dataclasses.dataclass(frozen=True)
class GeneratedWorlds:
  """A generated world for each seed, on which the demo and ablations train.

  Attributes:
    world: Settings of a world; its seed is the ablation's.
    block_length: Length of the corpus's blocks, in wordpieces.
    second_language: Second language, whose documents are added to the corpus;
      None uses only the first language.
    num_sentinels: Number of sentinels in the vocabulary, for a reader that
      writes.
    chains: Settings of pages of companies and questions of two hops; None adds
      neither.
  """

  world: world_lib.WorldConfig
  block_length: int
  second_language: SecondLanguageConfig | None = None
  num_sentinels: int = 0
  chains: ChainConfig | None = None

  def files(self, folder: Path) -> GivenData:
    """Returns the data of the seed with this folder."""
    names = "questions-train", "questions-test", "statements-test"
    files = [folder / f"world/{name}.jsonl" for name in names]
    return GivenData(folder / CORPUS, *files)

  def prepare(self, folder: Path, seed: int) -> world_lib.World:
    """Generates the world of a seed, and writes it and its corpora once.

    Raises:
      RealmError: The folder has a world with other settings.
    """
    config = dataclasses.replace(self.world, seed=seed)
    made_from, path = repr((config, self.block_length)), folder / "world.json"
    if self.second_language is not None:
      made_from += repr(self.second_language)
    if self.num_sentinels:
      made_from += f" with {self.num_sentinels} sentinels"
    if self.chains is not None:
      made_from += repr(self.chains)
    if path.exists() and (before := json.loads(path.read_text())) != made_from:
      raise RealmError(
        f"{folder} has a world of other settings, {before} instead of "
        f"{made_from}; remove it, or choose another --output_dir"
      )
    write_json(path, made_from)
    world, chains = world_lib.generate(config), None
    if self.chains is not None:
      chains = add_chains(world, self.chains, seed=seed)
      world = chains.world
    files, second = folder / "world", self.second_language
    articles = [_ARTICLES] if second is None else [_ARTICLES, _OWN_ARTICLES]
    if not (folder / _VOCABULARY).exists():
      world_lib.write_world(files, world)
      if chains is not None:
        write_questions(files, chains, seed=seed)
      documents = [*world.documents]
      if second is not None:
        more, statements = write_in_second_language(world, second, seed=seed)
        second_articles = folder / _OWN_ARTICLES
        world_lib.write_articles(second_articles, world, more, language=CODE)
        world_lib.write_questions(files, world, "statements", statements)
        documents += more
      # Written last, so it shows that the world is complete.
      world_lib.learn_vocabulary(
        folder, world, documents, num_sentinels=self.num_sentinels
      )
    if second is not None:
      self.build(folder, HIGH_CORPUS, _ARTICLES)
      self.build(folder, OWN_CORPUS, _OWN_ARTICLES)
    self.build(folder, CORPUS, *articles)
    return world

  def build(
    self, folder: Path, name: str, *articles: str, tagger: str = _TAGGER
  ) -> None:
    """Builds a corpus from files in a world's folder, unless it exists."""
    if (folder / name / MANIFEST_NAME).exists():
      return
    inputs = [str(folder / file) for file in articles]
    settings = {
      "output_dir": str(folder / name),
      "vocab": str(folder / _VOCABULARY),
      "block_length": self.block_length,
      "tagger": tagger,
    }
    if self.chains is not None:
      settings["links"] = "mentions"
    flags = [*(("input", path) for path in inputs), *settings.items()]
    arguments = shlex.join(f"--{flag}={value}" for flag, value in flags)
    print(f"\n$ python -m realm_jax.build_corpus {arguments}", flush=True)
    print(build_corpus(inputs, **settings).table(), flush=True)


def read_lines(path: Path) -> list[dict[str, Any]]:
  """Returns the objects in a JSON Lines file."""
  with path.open() as lines:
    return [*map(json.loads, lines)]


def write_judged(world: Path, path: Path) -> None:
  """Writes a world's training questions, with documents that answer them.

  A file that exists stays, because it is complete.
  """
  if path.exists():
    return
  documents = {one["id"]: one for one in read_lines(world / "articles.jsonl")}
  with json_lines(path) as write:
    for question in read_lines(world / "questions-train.jsonl"):
      relevant = [documents[name] for name in question["documents"]]
      write({"query": question["question"], "positive_passages": relevant})


# Corpus and questions of each seed, which may be the same for all seeds.
Data = GivenData | GeneratedWorlds

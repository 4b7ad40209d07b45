"""A world of a few dozen blocks, a model that fits it, and their files.

For tests that need the whole chain: a corpus with questions, a checkpoint as
the trainer writes it, a snapshot as the index builder publishes it.
"""

import dataclasses
import functools
import re
import string
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.store import Corpus
from realm_jax.indexes.exact import ExactConfig
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.models.bert import BertConfig
from realm_jax.models.components import Components
from realm_jax.models.reader import BertReader
from realm_jax.models.retriever import BertRetriever
from realm_jax.snapshots.build import SnapshotConfig
from realm_jax.snapshots.index_builder import IndexBuilderConfig, build_index
from realm_jax.text.salient_spans import Span
from realm_jax.text.vocabulary import SPECIAL_PIECES
from realm_jax.training.stages.open_qa import OpenQa
from realm_jax.training.stages.stage import Stage
from tests.json_lines import write_lines

QUERY_LENGTH = 16
BLOCK_LENGTH = 40
JOINT_LENGTH = 56

_PEOPLE = (
  "Ada Béla Chloë Dóra Émile Frida Gül Håkon Íris Jörg Kaï Léa Mía Nuño Oda "
  "Pär Quim Rosa Søren Túlia Udo Véra Wim Xenia Yves Zoë"
).split()
_CITIES = "Velt Tarn Ösker Mirá Pola".split()
# In no vocabulary as words: read letter by letter, as rare names are.
_RARE = frozenset("chloe hakon iris soren osker quim".split())

_BERT = BertConfig(
  hidden_size=16,
  num_layers=1,
  num_heads=2,
  intermediate_size=32,
  max_positions=JOINT_LENGTH,
  dropout_rate=0.0,
  # Ten times the usual: no two blocks score nearly the same, whatever the
  # order in which devices add up.
  init_stddev=0.2,
)
RETRIEVER = BertRetriever(bert=_BERT, projection_size=8)
READER = BertReader(
  bert=_BERT, joint_length=JOINT_LENGTH, span_size=8, max_answer_width=10
)


def documents() -> list[dict[str, str]]:
  """An article a person: two sentences, a city and a year in each."""
  return [
    {
      "id": f"p{i}",
      "title": f"{name} Stone",
      "text": (
        f"{name} was born in {_CITIES[i % 5]} in {1900 + i % 13}. Later "
        f"{name} built the bridge of {_CITIES[(i * 3 + 1) % 5]}."
      ),
      "year": str(1900 + i % 13),
    }
    for i, name in enumerate(_PEOPLE)
  ]


def questions() -> list[dict]:
  """Eleven questions, so that no batch of a power of two is full."""
  return [
    {
      "id": f"q{i}",
      "question": f"where was {_PEOPLE[2 * i]} born?",
      "answer": [_CITIES[2 * i % 5]],
    }
    for i in range(11)
  ]


def pieces() -> list[str]:
  """Words of the texts without the rare ones, and letters for those."""
  texts = [d["title"] + " " + d["text"] for d in documents()]
  texts += [q["question"] for q in questions()]
  folded = unicodedata.normalize("NFD", " ".join(texts).lower())
  folded = "".join(c for c in folded if unicodedata.category(c) != "Mn")
  # "ø" is a letter of its own, which no folding takes apart.
  words = sorted(set(re.findall(r"\w+|[^\w\s]", folded)) - _RARE - {"søren"})
  letters = string.ascii_lowercase + "ø"
  return [
    *SPECIAL_PIECES,
    *words,
    *letters,
    *(f"##{letter}" for letter in letters),
  ]


def tag(text: str, title: str) -> list[Span]:
  """The five cities and the years are salient."""
  del title
  found = re.finditer("|".join([*_CITIES, r"\d{4}"]), text)
  return [
    Span(len(text[: m.start()].encode()), len(text[: m.end()].encode()), "name")
    for m in found
  ]


@functools.cache
def _compiled_init(
  stage: Stage, components: Components
) -> Callable[[int], Any]:
  """Random parameters; operation by operation they would take 15 seconds."""
  lengths = QUERY_LENGTH, BLOCK_LENGTH
  return jax.jit(
    lambda seed: stage.init(components, *lengths, jax.random.key(seed))
  )


@dataclasses.dataclass(frozen=True)
class World:
  """The files of a tiny world."""

  directory: Path

  @property
  def corpus_dir(self) -> Path:
    return self.directory / "corpus"

  @property
  def question_file(self) -> Path:
    return self.directory / "questions.jsonl"

  @property
  def corpus(self) -> Corpus:
    return Corpus.open(self.corpus_dir)

  def components(self) -> Components:
    """The two modules over the corpus's vocabulary."""
    words = self.corpus.vocabulary
    vocabulary = {"vocab_size": words.size, "separator_id": words.sep_id}
    components = Components({"retriever": RETRIEVER, "reader": READER})
    return components.for_vocabulary(**vocabulary)

  def save_checkpoint(
    self,
    model_dir: Path,
    *,
    step: int = 0,
    seed: int = 0,
    snapshot: int = -1,
    stage: Stage | None = None,
  ) -> dict:
    """Random parameters in a checkpoint such as the trainer's."""
    stage = stage or OpenQa()
    params = nn.unbox(_compiled_init(stage, self.components())(seed))
    place = {
      "positions": np.zeros((8, 2), np.int32),
      "snapshots": np.array([snapshot]),
      "seed": np.int64(seed),
    }
    store = CheckpointStore(model_dir)
    store.save(step, {**params, "loop": place})
    store.wait()
    store.close()
    return params

  def build_snapshot(
    self,
    model_dir: Path,
    *,
    index: IndexConfig | None = None,
    retriever: BertRetriever | None = None,
    dtype: str = "float32",
    corpus_dir: Path | None = None,
    snapshots_dir: Path | None = None,
    **settings: Any,
  ) -> list[int]:
    """What `realm_jax.build_index --once` does."""
    return build_index(
      model_dir=model_dir,
      corpus_dir=corpus_dir or self.corpus_dir,
      snapshots_dir=snapshots_dir,
      snapshot=SnapshotConfig(
        retriever=retriever or RETRIEVER,
        index=index or ExactConfig(),
        stored_dtype=dtype,
        tokens_per_batch=512,
        num_lengths=1,
        query_length=QUERY_LENGTH,
        recall_queries=8,
        recall_at=(4,),
      ),
      builder=IndexBuilderConfig(once=True, **settings),
    )


def write_corpus(
  directory: Path, articles: list[dict[str, str]], *, vocab: Path
) -> Path:
  """Builds a corpus of articles in a folder of a directory; returns it."""
  build_corpus(
    [str(write_lines(directory / "text.jsonl", articles))],
    directory / "corpus",
    vocab=str(vocab),
    block_length=BLOCK_LENGTH,
    tagger=tag,
    fields=["year"],
  )
  return directory / "corpus"


def build(directory: Path) -> World:
  """Writes the corpus and the questions."""
  (directory / "vocab.txt").write_text("\n".join(pieces()), encoding="utf-8")
  write_corpus(directory, documents(), vocab=directory / "vocab.txt")
  world = World(directory)
  write_lines(world.question_file, questions())
  return world

"""A page's service over the tiny world, whose two heads are both random."""

from typing import NamedTuple

import pytest

from realm_jax.corpus.store import Corpus
from realm_jax.evaluation.explaining.explainer import (
  Explainer,
  ExplainingConfig,
  load_explainer,
)
from realm_jax.serving.service import SENTENCE, Service
from tests import tiny_world

# As many as in the tests of the explainer, whose programs are used again.
NUM_CANDIDATES = 6


@pytest.fixture(scope="module")
def explainer(source, one_device) -> Explainer:
  return load_explainer(
    source=source, config=ExplainingConfig(num_candidates=NUM_CANDIDATES)
  )


@pytest.fixture(scope="module")
def service(explainer) -> Service:
  return Service(explainer, examples={SENTENCE: ["Ada was born in [MASK]."]})


class Edited(NamedTuple):
  """Other texts of some rows, and a corpus that was built from them."""

  texts: dict[int, str]
  corpus: Corpus


@pytest.fixture(scope="session")
def edited(world, tmp_path_factory) -> Edited:
  """Texts of other lengths, and two of blocks that many queries find."""
  texts = {
    0: "Ada was born in Tarn.",
    # The second block of an article, and characters that take two bytes.
    3: "Later Chloë built the bridge of Ösker in 1901.",
    4: "Later Dóra built the bridge of Velt in 1909. Dóra was born in Ösker.",
    11: "Jörg was born in Pola in 1909. Later Jörg built the stone of Mirá.",
    16: "Oda was born in Pola in 1901. Later Oda built the stone of Mirá.",
    27: "  Zoë was born. Zoë was born in 1901. Zoë built. ",
  }
  bodies: dict[str, list[str]] = {}
  for row in range(world.corpus.num_blocks):
    text = texts.get(row, world.corpus.block(row).body)
    bodies.setdefault(world.corpus.block(row).document_id, []).append(text)
  corpus_dir = tiny_world.write_corpus(
    tmp_path_factory.mktemp("edited"),
    [
      {**article, "text": " ".join(bodies[article["id"]])}
      for article in tiny_world.documents()
    ],
    vocab=world.directory / "vocab.txt",
  )
  return Edited(texts, Corpus.open(corpus_dir))

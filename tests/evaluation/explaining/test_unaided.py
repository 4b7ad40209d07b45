"""A masked language model alone, by a vocabulary of its own."""

import jax
import numpy as np
import pytest

from realm_jax.checkpoints.store import CheckpointError
from realm_jax.evaluation.explaining.masked_text import MaskLimits
from realm_jax.evaluation.explaining.unaided import load_unaided
from realm_jax.models import sequences
from realm_jax.partitioning.mesh import make_mesh
from tests import tiny_world

pytestmark = pytest.mark.slow

_LIMITS = MaskLimits(tiny_world.QUERY_LENGTH, 10)
_SENTENCE = "Ada was born in [MASK]."


def _load(world, model_dir):
  return load_unaided(
    model_dir=model_dir,
    reader=tiny_world.READER,
    corpus=world.corpus,
    limits=_LIMITS,
    mesh=make_mesh(devices=jax.devices()[:1]),
  )


def test_it_reads_the_sentence_and_nothing_else(world, model_dir, params):
  words, reader = world.corpus.vocabulary, world.models().reader
  found = _load(world, model_dir).fill(_SENTENCE, "Velt", 3)
  pieces = "[CLS] ada was born in [MASK] . [SEP]".split()
  query = np.array([[words.pieces.index(piece) for piece in pieces]])
  logits = jax.jit(
    lambda params: reader.apply(
      {"params": params},
      sequences.padded(query),
      np.array([[5]]),
      method="masked_lm",
    )
  )(params["reader"])
  odds = np.exp(np.float64(logits[0, 0, 0]))
  probabilities = odds / odds.sum()
  velt = probabilities[words.pieces.index("velt")]
  assert found.log_likelihood == pytest.approx(np.log(velt), abs=1e-4)
  np.testing.assert_allclose(
    [filling.probability for filling in found.fillings],
    np.sort(probabilities)[::-1][:3],
    rtol=1e-4,
  )
  best = words.pieces[int(probabilities.argmax())]
  assert found.fillings[0].text == best
  assert found.wordpieces == ["velt"]


def test_a_vocabulary_of_its_own(world, model_dir, tmp_path):
  (tmp_path / "checkpoints").symlink_to(model_dir / "checkpoints")
  own = tmp_path / "vocab.txt"
  # "velt" is not among its words, and is read letter by letter.
  pieces = [p if p != "velt" else "nowhere" for p in tiny_world.pieces()]
  own.write_text("\n".join(pieces))
  found = _load(world, tmp_path).fill(_SENTENCE, "Velt", 1)
  assert found.wordpieces == ["v", "##e", "##l", "##t"]
  own.write_text("\n".join([*pieces, "more"]))
  with pytest.raises(CheckpointError, match="does not fit this model"):
    _load(world, tmp_path)

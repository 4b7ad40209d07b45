"""Examples as people read them."""

import numpy as np
import tensorflow as tf

from realm_jax.inputs.display import describe
from realm_jax.inputs.features import plain_feature, token_feature


def test_masks_show_what_they_hide(tiny):
  corpus = tiny.corpus
  ids = {piece: i for i, piece in enumerate(corpus.vocabulary.pieces)}
  query = "[CLS] it [MASK] [MASK] [MASK] . [SEP]".split()
  text = describe(
    {
      "position": np.int64(7),
      "query": np.array([ids[piece] for piece in query]),
      "mask_positions": np.array([2, 3]),
      "mask_targets": np.array([ids["passes"], ids["##ses"]]),
      "removed": np.bool_(True),
      "answers": np.array(["São".encode(), b"b"], object),
      "source_id": corpus.block_ids[1],
    },
    features={
      "query": token_feature(),
      "mask_targets": token_feature(),
      "removed": plain_feature(tf.bool, rank=0),
    },
    corpus=corpus,
  )
  lines = [line.split(maxsplit=1) for line in text.splitlines()]
  assert lines == [
    ["position", "7"],
    ["query", "[CLS] it [MASK=passes] [MASK=##ses] [MASK] . [SEP]"],
    ["mask_targets", "passesses"],
    ["removed", "yes"],
    ["answers", "São | b"],
    ["source", f"rhine ({corpus.block(1).name})"],
  ]

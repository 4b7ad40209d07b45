"""Queries with judged passages, for training a retriever.

judged_passages   a query, a relevant passage and irrelevant ones, from files in
                  DPR's or Tevatron's format, MS MARCO's triples, or a folder in
                  BEIR's format (realm_jax/inputs/judged_passages.py)
scored_passages   the same, from files with a teacher's score for each passage
"""

from collections.abc import Mapping

import numpy as np
import seqio
import tensorflow as tf

from realm_jax.corpus.block_builder import content_hash
from realm_jax.inputs.features import (
  feature_length,
  plain_feature,
  token_feature,
  wordpieces,
)
from realm_jax.inputs.judged_passages import JudgedSource


@tf.autograph.experimental.do_not_convert
def choose_passages(
  records: tf.data.Dataset, *, sequence_length: Mapping[str, int] | None = None
) -> tf.data.Dataset:
  """Makes `query`, `block`, a relevant passage, and `negatives`.

  Each epoch draws another relevant passage and other negatives. Passages have
  the form of blocks, `[CLS] title [SEP] text [SEP]`, and are truncated to a
  block's length. `source_hash` has the content hashes of the relevant passages,
  the chosen one first. If the records have scores, `negative_scores` has the
  scores of the negatives less the score of `block`.
  """
  words = wordpieces()
  query_length = feature_length("query", sequence_length)
  block_length = feature_length("block", sequence_length)
  num_negatives = feature_length("negatives", sequence_length)
  num_known = feature_length("source_hash", sequence_length)
  # Without a limit, blocks are as long as their tokens.
  longest = block_length if sequence_length else None

  def block_of(title: list[int], text: list[int]) -> list[int]:
    title = title[: (block_length - 3) // 2]
    text = text[: block_length - 3 - len(title)]
    return [words.cls_id, *title, words.sep_id, *text, words.sep_id]

  def choose(
    query: bytes,
    titles: np.ndarray,
    texts: np.ndarray,
    num_positives: np.int32,
    seed: np.ndarray,
    scores: np.ndarray,
  ) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed.view(np.uint32))
    positives = rng.permutation(num_positives)[:num_known]
    negatives = rng.permutation(np.arange(num_positives, len(texts)))
    negatives = negatives[:num_negatives]
    chosen = [positives[0], *negatives]
    parts = [query, *titles[chosen], *texts[chosen]]
    tokens = words.tokenize_with_offsets([part.decode() for part in parts])
    ids = np.split(tokens.token_ids, tokens.row_offsets[1:-1])
    query_ids, *rest = [one.tolist() for one in ids]
    count = len(chosen)
    blocks = [*map(block_of, rest[:count], rest[count:])]
    padded = np.zeros((count, longest or max(map(len, blocks))), np.int32)
    for row, block in zip(padded, blocks, strict=True):
      row[: len(block)] = block
    query_ids = [words.cls_id, *query_ids[: query_length - 2], words.sep_id]

    def hashes(rows: np.ndarray) -> np.ndarray:
      values = [content_hash(titles[i].decode(), texts[i]) for i in rows]
      return np.array(values, np.int64)

    return (
      np.array(query_ids, np.int32),
      np.array(blocks[0], np.int32),
      padded[1:],
      hashes(positives),
      hashes(negatives),
      (scores[negatives] - scores[positives[0]]) if len(scores) else scores,
    )

  def to_example(record: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    names = ("query", "titles", "texts", "num_positives", "seed")
    types = [tf.int32, tf.int32, tf.int32, tf.int64, tf.int64, tf.float32]
    arguments = [record[name] for name in names]
    arguments.append(record.get("scores", tf.zeros(0)))
    query, block, negatives, sources, hashes, scores = tf.numpy_function(
      choose, arguments, types, stateful=False
    )
    scored = {"negative_scores": tf.ensure_shape(scores, [None])}
    return (scored if "scores" in record else {}) | {
      "position": record["position"],
      "query": tf.ensure_shape(query, [None]),
      "block": tf.ensure_shape(block, [None]),
      "negatives": tf.ensure_shape(negatives, [None, longest]),
      "source_hash": tf.ensure_shape(sources, [None]),
      "negative_hashes": tf.ensure_shape(hashes, [None]),
      "question": record["query"],
      "answers": record["answers"],
    }

  return records.map(to_example, num_parallel_calls=tf.data.AUTOTUNE)


_FEATURES = {
  "query": token_feature(),
  "block": token_feature(),
  "negatives": plain_feature(tf.int32, rank=2),
  "source_hash": plain_feature(tf.int64, rank=1),
  "negative_hashes": plain_feature(tf.int64, rank=1),
}

seqio.TaskRegistry.add(
  "judged_passages",
  source=JudgedSource(),
  preprocessors=[choose_passages],
  output_features=_FEATURES,
)
seqio.TaskRegistry.add(
  "scored_passages",
  source=JudgedSource(has_scores=True),
  preprocessors=[choose_passages],
  output_features={
    **_FEATURES,
    "negative_scores": plain_feature(tf.float32, rank=1),
  },
)

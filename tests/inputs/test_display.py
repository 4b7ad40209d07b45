"""Examples as people read them."""

import subprocess
import sys

import numpy as np
import pytest
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
    ["source", f"rhine ({corpus.block_name(1)})"],
  ]


@pytest.mark.slow
def test_show_task_prints_real_masks(tiny, command_environment):
  """The command of the README, with no terminal and so no colour."""
  command = [sys.executable, "-m", "realm_jax.show_task", "--num=3"]
  command += ["--task=masked_salient_spans", f"--corpus_dir={tiny.corpus_dir}"]
  done = subprocess.run(
    command,
    env=command_environment,
    capture_output=True,
    text=True,
    check=True,
    timeout=120,
  )
  assert done.stdout.count("position") == 3
  assert done.stdout.count("[MASK=") == 3
  assert "\033" not in done.stdout

"""Imports and trains the numeric core where nothing else is installed.

`python -m tests.numeric_core_child` is a process of its own, because this
one has imported TensorFlow long before a test runs.
"""

import importlib
import pkgutil
import sys

# Importing any of these fails, as where they are not installed.
ABSENT = (
  "apache_beam",
  "bm25s",
  "clu",
  "faiss",
  "gin",
  "scann",
  "sentencex",
  "seqio",
  "tensorflow",
  "tensorflow_datasets",
  "tensorflow_text",
  "xmanager",
)


# What a user of the models, losses and steps imports.
CORE = (
  "realm_jax.indexes.exact",
  "realm_jax.models",
  "realm_jax.objectives",
  "realm_jax.partitioning",
  "realm_jax.training.stages.pretraining",
  "realm_jax.training.step",
)


class _Absent:
  """Answers for the libraries of ABSENT before any installed one does."""

  def find_spec(self, name, path=None, target=None):
    del path, target
    if name.partition(".")[0] in ABSENT:
      raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def is_importable(name: str) -> bool:
  """Whether `import name` works here."""
  try:
    importlib.import_module(name)
  except ModuleNotFoundError:
    return False
  return True


def train() -> list[float]:
  """The losses of 20 steps of REALM pre-training on two examples."""
  import jax
  import numpy as np
  import optax

  from realm_jax.models import bert, packing, reader, retriever
  from realm_jax.partitioning.mesh import make_mesh
  from realm_jax.training import encoder_rows, step
  from realm_jax.training.encoder_rows import RowLayout
  from realm_jax.training.stages.masked_words import MaskTargets
  from realm_jax.training.stages.pretraining import (
    Pretraining,
    PretrainingBatch,
  )
  from realm_jax.training.stages.stage import Models

  config = bert.BertConfig(
    vocab_size=11,
    separator_id=3,
    hidden_size=8,
    num_layers=1,
    num_heads=2,
    intermediate_size=16,
    max_positions=16,
    dropout_rate=0.0,
  )
  towers = retriever.Retriever(
    config, projection_size=4, projection_dropout_rate=0.0
  )
  reads = reader.Reader(
    config, joint_length=12, span_size=4, max_answer_width=3
  )
  blocks = np.array([[2, 3, 3, 0, 0, 0], [2, 7, 3, 8, 9, 3]], np.int32)
  tokens = np.stack([blocks, blocks])
  query = np.array([[2, 5, 4, 3], [2, 6, 4, 3]], np.int32)
  batch = PretrainingBatch(
    query,
    encoder_rows.Candidates(tokens, packing.content_numbers(tokens)),
    MaskTargets(
      positions=np.full((2, 1), 2),
      token_ids=np.array([[8], [9]]),
      weights=np.ones((2, 1), np.float32),
    ),
  )
  stage, models = Pretraining(num_candidates=2), Models(towers, reads)
  rows_of, loss = stage.functions(models)
  lengths = query.shape[1], blocks.shape[1]

  def init(key):
    return stage.init(models, *lengths, key)

  optimizer = optax.sgd(0.3)
  mesh = make_mesh(devices=jax.devices()[:1])
  now = step.create_state(init, optimizer, seed=0, mesh=mesh)

  @jax.jit
  def update(now, batch):
    return step.train_step(
      now,
      batch,
      rows_of=rows_of,
      loss=loss,
      layout=RowLayout(mesh, ((1, 1, 2),)),
      optimizer=optimizer,
      seed=0,
    )

  losses = []
  for _ in range(20):
    now, metrics = update(now, batch)
    losses.append(float(metrics["loss"]))
  return losses


def main() -> None:
  sys.meta_path.insert(0, _Absent())
  present = [name for name in ABSENT if is_importable(name)]
  if present:
    sys.exit(f"these should not be importable here: {present}")

  for name in CORE:
    module = importlib.import_module(name)
    for inner in pkgutil.walk_packages(
      getattr(module, "__path__", ()), f"{name}."
    ):
      importlib.import_module(inner.name)
  losses = train()
  if not losses[-1] < 0.5 * losses[0]:
    sys.exit(f"twenty steps taught the core nothing: {losses}")
  print("trained without", *ABSENT)


if __name__ == "__main__":
  main()

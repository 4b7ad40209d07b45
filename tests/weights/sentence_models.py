"""Retrievers whose export sentence-transformers has computed with.

    .venv/bin/python -m tests.weights.sentence_models

writes them to `tests/golden/sentence_transformers`, and beside them what the
library, in the environment of `make peers`, makes of the texts: see
`harness/peers/sentence.py`.
"""

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
from etils import epath

from harness import peer_processes
from realm_jax.models.retriever import BertRetriever
from realm_jax.weights.exporting import plan_export, write_export
from realm_jax.weights.name_maps import RETRIEVER
from tests.weights import models

WORDS = models.vocabulary()
# One layer, which compiles faster.
_BERT = dataclasses.replace(models.BERT, num_layers=1)
# What the library gets before a query.
PREFIX = "where was "
RETRIEVERS = {
  # As released: BERT's pooler, a projection with LayerNorm, two towers here.
  "query_tower": BertRetriever(
    bert=_BERT, projection_size=4, shared_towers=False
  ),
  "block_tower": BertRetriever(
    bert=_BERT, projection_size=4, shared_towers=False
  ),
  "mean_of_one_text": BertRetriever(
    bert=_BERT,
    pooling="mean",
    projection_size=None,
    normalize=True,
    title_separator=False,
    token_types=False,
    query_prefix=tuple(WORDS.encode(PREFIX)),
  ),
}
QUERIES = ("who built the bridge?", "  Zoë's mill, in 1987 ", "北京 ☃")
DOCUMENTS = (
  ("Bridge (York)", "The bridge was built by the railway. It's old."),
  ("", "no title, but a Körper"),
  ("A title", ""),
)


def tower_of(name: str) -> str | None:
  """Returns the tower that is exported as a directory of this name."""
  tower = name.removesuffix("_tower")
  return None if tower == name else tower


def texts(name: str) -> dict[str, list]:
  """Returns what the library is given, by what it is."""
  retriever = RETRIEVERS[name]
  prefix = PREFIX if retriever.query_prefix else ""
  documents = [*DOCUMENTS]
  if not retriever.title_separator:
    documents = [f"{title} {body}" for title, body in DOCUMENTS]
  inputs = {"query": [prefix + text for text in QUERIES], "block": documents}
  tower = tower_of(name)
  return inputs if tower is None else {tower: inputs[tower]}


def token_ids(side: str) -> np.ndarray:
  """Returns the tokens that this project has for the same texts, padded."""
  rows = []
  for text in QUERIES if side == "query" else DOCUMENTS:
    parts = [text] if isinstance(text, str) else text
    row = [WORDS.cls_id]
    for part in parts:
      row += [*WORDS.encode(part), WORDS.sep_id]
    rows.append(row)
  padded = np.zeros((len(rows), max(map(len, rows))), np.int32)
  for line, row in zip(padded, rows, strict=True):
    line[: len(row)] = row
  return padded


def parameters(name: str) -> dict[str, np.ndarray]:
  """Returns random parameters of a retriever by path, none zero or one."""
  shapes = models.bound(RETRIEVERS[name]).parameter_shapes([RETRIEVER])
  rng = np.random.default_rng(3)
  return {
    path: rng.normal(0, 0.5, shape).astype(np.float32)
    for path, shape in shapes.items()
  }


def export(name: str, directory) -> None:
  """Writes the directory of a retriever."""
  model = models.bound(RETRIEVERS[name])
  export = plan_export(model, to="sentence_transformers", tower=tower_of(name))
  directory.mkdir(parents=True, exist_ok=True)
  words = model.vocabulary
  write_export(export, epath.Path(directory), parameters(name), words)


def main() -> None:
  """Writes all directories anew."""
  for name in RETRIEVERS:
    directory = models.GOLDEN / "sentence_transformers" / name
    export(name, directory)
    for side, inputs in texts(name).items():
      with tempfile.TemporaryDirectory() as folder:
        arrays = peer_processes.run_on_texts(
          "vectors", inputs, Path(folder), model=directory
        )
      np.savez(directory / f"{side}.npz", **arrays)


if __name__ == "__main__":
  main()

"""Common parts of random Hugging Face REALM models: inputs and folders."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import RealmConfig, RealmTokenizerFast
from transformers.models.realm.modeling_realm import RealmPreTrainedModel

from benchmarks.peers.random_inputs import RandomInputs, Tokens, padded
from benchmarks.peers.tensors import EXPECTED, as_inputs, save_arrays


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes of models and inputs.

  Attributes:
    model: Arguments of RealmConfig; by default they are those of BERT-base.
    batch: Number of queries.
    candidates: Number of candidates of a query, including the null block.
    query: Greatest length of a query, with [CLS] and [SEP].
    block: Greatest length of a block.
    masks: Number of masks that are scored in a query.
    num_blocks: Number of blocks of the corpus.
  """

  model: dict[str, int]
  batch: int
  candidates: int
  query: int
  block: int
  masks: int
  num_blocks: int


SIZES = {
  "tiny": Sizes(
    model={
      "hidden_size": 24,
      "num_hidden_layers": 2,
      "num_attention_heads": 2,
      "intermediate_size": 48,
      "max_position_embeddings": 64,
      "retriever_proj_size": 16,
      "span_hidden_size": 16,
      "reader_beam_size": 4,
      "searcher_beam_size": 10,
      "reader_seq_len": 40,
    },
    batch=4,
    candidates=4,
    query=14,
    block=36,
    masks=3,
    num_blocks=24,
  ),
  "base": Sizes(
    model={
      "reader_beam_size": 5,
      "searcher_beam_size": 20,
      "reader_seq_len": 120,
    },
    batch=3,
    candidates=4,
    query=40,
    block=96,
    masks=5,
    num_blocks=60,
  ),
}


class RandomRealm:
  """Sizes, vocabulary, inputs and folders that the models share.

  Args:
    output_dir: Folder for the models' folders.
    vocab: Vocabulary file, one piece per line.
    sizes: Sizes of models and inputs.
    seed: Seed of all random numbers.
  """

  def __init__(self, output_dir: Path, vocab: Path, sizes: Sizes, *, seed: int):
    pieces = vocab.read_text(encoding="utf-8").rstrip("\n").split("\n")
    self.inputs = RandomInputs(pieces, seed=seed)
    self.tokenizer = RealmTokenizerFast(vocab_file=str(vocab))
    self.sizes = sizes
    self.config = RealmConfig(
      vocab_size=len(pieces),
      num_candidates=sizes.candidates,
      num_block_records=sizes.num_blocks,
      pad_token_id=self.tokenizer.pad_token_id,
      **sizes.model,
    )
    self._output_dir = output_dir
    torch.manual_seed(seed)

  def folder(self, name: str) -> Path:
    """Returns the folder of a model."""
    return self._output_dir / name

  def save(
    self,
    name: str,
    model: RealmPreTrainedModel,
    *,
    same: tuple[str, ...] = (),
  ) -> None:
    """Writes a model and its vocabulary.

    Args:
      name: Name of the folder.
      model: Model to write.
      same: Regular expressions of parameters that are shared under a second
        name. Without them transformers refuses to write shared parameters.
    """
    model._tied_weights_keys = [*(model._tied_weights_keys or ()), *same]
    model.save_pretrained(self.folder(name))
    self.tokenizer.save_pretrained(self.folder(name))

  def expect(self, name: str, **arrays: Any) -> None:
    """Writes the inputs and the outputs of a model."""
    save_arrays(self.folder(name) / EXPECTED, arrays)

  def queries(self) -> list[Tokens]:
    """Draws a batch of queries."""
    return [
      self.inputs.query(self.sizes.query) for _ in range(self.sizes.batch)
    ]

  def blocks(self, count: int) -> list[Tokens]:
    """Draws some blocks."""
    return [self.inputs.block(self.sizes.block) for _ in range(count)]

  def candidates(self) -> list[list[Tokens]]:
    """Draws candidates for each query of a batch, the null block first."""
    return [
      [self.inputs.null_block, *self.blocks(self.sizes.candidates - 1)]
      for _ in range(self.sizes.batch)
    ]

  def padded_queries(self, queries: list[Tokens]) -> np.ndarray:
    """Pads queries to [b, q]."""
    return padded(queries, self.sizes.query)

  def padded_candidates(self, candidates: list[list[Tokens]]) -> np.ndarray:
    """Pads candidates to [b, k, l]."""
    return np.stack([padded(blocks, self.sizes.block) for blocks in candidates])

  def bert_inputs(self, rows: list[Tokens]) -> dict[str, torch.Tensor]:
    """Returns ids, mask and types, padded to the longest row."""
    return as_inputs(self.inputs, rows, max(map(len, rows)))

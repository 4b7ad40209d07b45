"""Random Hugging Face REALM models, their inputs and their folders."""

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
  """Of models and inputs.

  Attributes:
    model: what RealmConfig takes; the others are those of BERT-base.
    batch: queries.
    candidates: of a query, the null block among them.
    query: the longest, with [CLS] and [SEP].
    block: the longest.
    masks: scored in a query.
    num_blocks: of the corpus.
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
  """What the models have in common: sizes, vocabulary, inputs, a folder each.

  Args:
    output_dir: where the folders go.
    vocab: a vocabulary, one piece a line.
    sizes: of models and inputs.
    seed: of everything.
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
    """A model's folder."""
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
      name: of the folder.
      model: what to write.
      same: parameters that are others under a second name, by regular
        expressions; transformers does not know of them and refuses to write
        one twice.
    """
    model._tied_weights_keys = [*(model._tied_weights_keys or ()), *same]
    model.save_pretrained(self.folder(name))
    self.tokenizer.save_pretrained(self.folder(name))

  def expect(self, name: str, **arrays: Any) -> None:
    """Writes what a model was given and what it computed."""
    save_arrays(self.folder(name) / EXPECTED, arrays)

  def queries(self) -> list[Tokens]:
    """A batch of queries."""
    return [
      self.inputs.query(self.sizes.query) for _ in range(self.sizes.batch)
    ]

  def blocks(self, count: int) -> list[Tokens]:
    """Some blocks."""
    return [self.inputs.block(self.sizes.block) for _ in range(count)]

  def candidates(self) -> list[list[Tokens]]:
    """The null block and others, for each query of a batch."""
    return [
      [self.inputs.null_block, *self.blocks(self.sizes.candidates - 1)]
      for _ in range(self.sizes.batch)
    ]

  def padded_queries(self, queries: list[Tokens]) -> np.ndarray:
    """[b, q]"""
    return padded(queries, self.sizes.query)

  def padded_candidates(self, candidates: list[list[Tokens]]) -> np.ndarray:
    """[b, k, l]"""
    return np.stack([padded(blocks, self.sizes.block) for blocks in candidates])

  def bert_inputs(self, rows: list[Tokens]) -> dict[str, torch.Tensor]:
    """Ids, mask and types, padded to the longest of the rows."""
    return as_inputs(self.inputs, rows, max(map(len, rows)))

"""Makes random Hugging Face BERTs, and the values that they compute.

Each model is a folder written by `save_pretrained`. `expected.npz` in it has
the input tokens and the outputs.

| folder | parameters |
| --- | --- |
| `with_pooler` | encoder and pooler, without a prefix |
| `without_pooler` | the encoder alone |
| `masked_lm` | encoder, prefixed `bert.`, and masked-LM head |
"""

from pathlib import Path

import torch
from transformers import (
  BertConfig,
  BertForMaskedLM,
  BertModel,
  BertTokenizerFast,
)

from benchmarks.peers.random_inputs import RandomInputs
from benchmarks.peers.tensors import (
  EXPECTED,
  as_inputs,
  randomize,
  save_arrays,
)

_QUERY_LENGTH, _BLOCK_LENGTH = 12, 30
_COUNT = 4
# Positions in the joint input of each query and the body of its block.
_POSITIONS = [1, 3]


def make_all(
  output_dir: Path, vocab: Path, *, model: dict[str, int], seed: int = 0
) -> None:
  """Makes all models.

  Args:
    output_dir: Folder for the models' folders.
    vocab: Vocabulary file, one piece per line.
    model: Arguments of BertConfig; by default they are those of BERT-base.
    seed: Seed of all random numbers.
  """
  pieces = vocab.read_text(encoding="utf-8").rstrip("\n").split("\n")
  inputs = RandomInputs(pieces, seed=seed)
  tokenizer = BertTokenizerFast(vocab_file=str(vocab))
  config = BertConfig(vocab_size=len(pieces), **model)
  torch.manual_seed(seed)
  queries = [inputs.query(_QUERY_LENGTH) for _ in range(_COUNT)]
  blocks = [inputs.block(_BLOCK_LENGTH) for _ in range(_COUNT)]
  query = as_inputs(inputs, queries, _QUERY_LENGTH)
  block = as_inputs(inputs, blocks, _BLOCK_LENGTH)
  length = _QUERY_LENGTH + _BLOCK_LENGTH
  pairs = zip(queries, blocks, strict=True)
  joint = as_inputs(inputs, [inputs.joint(*p, length) for p in pairs], length)
  for name, network in (
    ("with_pooler", BertModel(config)),
    ("without_pooler", BertModel(config, add_pooling_layer=False)),
    ("masked_lm", BertForMaskedLM(config)),
  ):
    randomize(network)
    network.save_pretrained(output_dir / name)
    tokenizer.save_pretrained(output_dir / name)
    arrays = {"query": query["input_ids"], "block": block["input_ids"]}
    encoder = network.bert if name == "masked_lm" else network
    with torch.no_grad():
      for side, given in (("query", query), ("block", block)):
        output = encoder(**given)
        arrays[f"{side}_hidden"] = output.last_hidden_state
        if output.pooler_output is not None:
          arrays[f"{side}_pooled"] = output.pooler_output
      if name == "masked_lm":
        logits = network(**joint).logits
        arrays["mask_positions"] = _POSITIONS
        arrays["joint_logits"] = logits[:, _POSITIONS]
    save_arrays(output_dir / name / EXPECTED, arrays)

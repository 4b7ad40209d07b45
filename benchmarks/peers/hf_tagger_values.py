"""Makes a random tagger of Hugging Face's, and the values that it computes.

The folder is written by `save_pretrained`. `expected.npz` has the tokens of
some sentences and the logits of the labels of these tokens, `expected.json` the
sentences and the entities that transformers' pipeline finds in them.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import (
  BertConfig,
  BertForTokenClassification,
  BertTokenizerFast,
  pipeline,
)

from benchmarks.peers.tensors import EXPECTED, randomize, save_arrays

ENTITIES = "expected.json"
_LABELS = ("O", *(f"{p}-{k}" for k in "MISC PER ORG LOC".split() for p in "BI"))


def make_tagger(
  output_dir: Path,
  vocab: Path,
  *,
  sentences: Sequence[str],
  cased: bool,
  model: dict[str, int],
  seed: int = 0,
) -> None:
  """Makes the folder.

  Args:
    output_dir: Folder to make.
    vocab: Vocabulary file, one piece per line.
    sentences: Texts to tag.
    cased: Whether the tokenizer keeps capitals and accents.
    model: Arguments of BertConfig; by default they are those of BERT-base.
    seed: Seed of all random numbers.
  """
  pieces = vocab.read_text(encoding="utf-8").rstrip("\n").split("\n")
  tokenizer = BertTokenizerFast(vocab_file=str(vocab), do_lower_case=not cased)
  config = BertConfig(
    vocab_size=len(pieces),
    id2label=dict(enumerate(_LABELS)),
    label2id={label: index for index, label in enumerate(_LABELS)},
    **model,
  )
  torch.manual_seed(seed)
  network = randomize(BertForTokenClassification(config))
  inputs = tokenizer(list(sentences), padding=True, return_tensors="pt")
  is_token = inputs["attention_mask"].bool()
  with torch.no_grad():
    # So that each label is the most probable one of some tokens.
    network.classifier.bias -= network(**inputs).logits[is_token].mean(0)
    logits = network(**inputs).logits
  network.save_pretrained(output_dir)
  tokenizer.save_pretrained(output_dir)
  save_arrays(
    output_dir / EXPECTED, {"tokens": inputs["input_ids"], "logits": logits}
  )
  tag = pipeline(
    "token-classification",
    model=network,
    tokenizer=tokenizer,
    # A word has the label of its first piece.
    aggregation_strategy="first",
  )
  rows = [
    {
      "sentence": sentence,
      "entities": [
        [found["start"], found["end"], found["entity_group"]]
        for found in tag(sentence)
      ],
    }
    for sentence in sentences
  ]
  text = json.dumps(rows, ensure_ascii=False, indent=1)
  (output_dir / ENTITIES).write_text(text + "\n", encoding="utf-8")

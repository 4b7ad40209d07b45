"""Makes `tests/golden/hf_tagger`: tiny taggers and what transformers computes.

    .venv-peers/bin/python -m tests.golden.make_hf_tagger

Each folder is written by `save_pretrained`. `expected.npz` has the tokens of
some sentences and the logits of the labels of these tokens, `expected.json` the
sentences and the entities that transformers' pipeline finds in them.
"""

import json
import string
from pathlib import Path

import torch
from transformers import (
  BertConfig,
  BertForTokenClassification,
  BertTokenizerFast,
  pipeline,
)

from benchmarks.peers.random_models import EXPECTED, randomize, save_arrays
from tests.golden import vocabulary

OUTPUT_DIR = Path(__file__).resolve().parent / "hf_tagger"
_MODEL = {
  "hidden_size": 24,
  "num_hidden_layers": 2,
  "num_attention_heads": 2,
  "intermediate_size": 48,
  "max_position_embeddings": 64,
}
# Accents, Chinese characters, abbreviations, marks inside words, words that
# have no pieces, and a text of one word.
_SENTENCES = (
  "the Queen of England married Prince Albert in a castle near the river",
  "Ada Lovelace and J. R. R. Tolkien wrote songs (and stories) in the U.S.",
  "Zoë Çelik saw the opera in Kraków, a wall-painting and 北京 station!",
  "half of it is ½ of a fine paper; ☃ built railways-and-towers in 1987",
  "Army",
  "AT&T's first ship sailed west, past O'Brien's mill... and the son's wife",
)
_LABELS = ("O", *(f"{p}-{k}" for k in "MISC PER ORG LOC".split() for p in "BI"))


def make_tagger(output_dir: Path, vocab: Path, *, cased: bool) -> None:
  """Makes a folder, with or without capitals and accents."""
  pieces = vocab.read_text(encoding="utf-8").rstrip("\n").split("\n")
  tokenizer = BertTokenizerFast(vocab_file=str(vocab), do_lower_case=not cased)
  config = BertConfig(
    vocab_size=len(pieces),
    id2label=dict(enumerate(_LABELS)),
    label2id={label: index for index, label in enumerate(_LABELS)},
    **_MODEL,
  )
  torch.manual_seed(0)
  network = randomize(BertForTokenClassification(config))
  inputs = tokenizer(list(_SENTENCES), padding=True, return_tensors="pt")
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
    for sentence in _SENTENCES
  ]
  text = json.dumps(rows, ensure_ascii=False)
  (output_dir / "expected.json").write_text(text, encoding="utf-8")


def _cased_pieces() -> list[str]:
  capitals = string.ascii_uppercase
  words = ("Queen", "Prince", "England", "Army", "##ada")
  return [*vocabulary.pieces(), *capitals, "ë", "##ë", "ó", "##ó", *words]


def main() -> None:
  """Replaces the folder."""
  with vocabulary.replaced(OUTPUT_DIR) as folder:
    for name, pieces in (
      ("uncased", vocabulary.pieces()),
      ("cased", _cased_pieces()),
    ):
      path = vocabulary.write_vocabulary(folder, pieces)
      make_tagger(OUTPUT_DIR / name, path, cased=name == "cased")


if __name__ == "__main__":
  main()

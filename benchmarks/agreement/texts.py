"""Compares wordpieces and MiniLM's sentence vectors of real texts."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import peer_processes
from benchmarks.agreement import imported_model, tokens
from benchmarks.agreement.comparison import Row
from realm_jax.conversion.bert_models import TowerOptions
from realm_jax.conversion.hugging_face.bert import plan_hf_bert
from realm_jax.conversion.planning import ImportSource
from realm_jax.text.wordpieces import WordpieceVocabulary

_TOKENIZERS = ("fast", "slow")
_MIN_SENTENCE_COSINE = 0.99999
_MAX_TOKENS = 128
_TEXTS_PER_CALL = 32


def compare_tokens(
  texts: dict[str, list[str]], vocab: Path, folder: Path
) -> list[Row]:
  """Compares the tokens of all texts with both of Hugging Face's tokenizers.

  Args:
    texts: Texts by data set.
    vocab: Vocabulary file of all tokenizers.
    folder: Folder for files between the processes.
  """

  def tokenize(texts: Sequence[str]) -> dict[str, tokens.Ids]:
    found = peer_processes.run_on_texts(
      "hf_tokens", texts, folder, "--vocab", vocab
    )
    return {
      name: [
        row.tolist()
        for row in np.split(
          found[f"{name}/ids"], found[f"{name}/offsets"][1:-1]
        )
      ]
      for name in _TOKENIZERS
    }

  return tokens.compare(texts, WordpieceVocabulary(vocab), tokenize)


def compare_sentences(
  texts: Sequence[str], model_dir: Path, folder: Path
) -> list[Row]:
  """Compares sentence vectors, for which each system uses its own tokenizer.

  Args:
    texts: Sentences and paragraphs; long ones are truncated.
    model_dir: Folder with BERT weights that sentence-transformers knows.
    folder: Folder for files between the processes.
  """
  theirs = peer_processes.run_on_texts(
    "sentence_vectors",
    texts,
    folder,
    "--model",
    model_dir,
    "--max_length",
    str(_MAX_TOKENS),
  )
  source = ImportSource("hf_bert", model_dir)
  model = imported_model.load(plan_hf_bert(source, TowerOptions()))
  words = WordpieceVocabulary(model_dir / "vocab.txt")
  token_ids = np.zeros((len(texts), _MAX_TOKENS), np.int32)
  for row, ids in zip(token_ids, tokens.our_ids(words, texts), strict=True):
    kept = [words.cls_id, *ids[: _MAX_TOKENS - 2], words.sep_id]
    row[: len(kept)] = kept
  ours = np.concatenate(
    [
      model.query_vectors(token_ids[start : start + _TEXTS_PER_CALL])
      for start in range(0, len(texts), _TEXTS_PER_CALL)
    ]
  )
  cosines = np.sum(np.float64(ours) * theirs["vectors"], axis=-1)
  same = np.all(token_ids == theirs["token_ids"], axis=-1)
  return [
    Row(
      "MiniLM's sentence vectors",
      "cosine",
      float(cosines[same].min()),
      _MIN_SENTENCE_COSINE,
      at_least=True,
      note=f"the least of {same.sum()} texts; {np.sum(~same)} others have "
      "other tokens, as explained above",
    )
  ]

"""Makes `modernbert`: what transformers and sentence-transformers compute.

    python -m venv env
    env/bin/pip install torch==2.13.0 "transformers>=4.48,<5" \
      "sentence-transformers>=5"
    env/bin/python -m tests.golden.make_modernbert

The environment of peers has an older transformers. `masked_lm` has a tiny
ModernBertForMaskedLM, and `expected.npz` tokens, hidden states and logits.
`sentence` has the encoder alone as a SentenceTransformer with prompts, which
pools the last token, and in `expected.json` texts, token ids and vectors.
"""

import json
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from tokenizers.decoders import ByteLevel
from tokenizers.processors import TemplateProcessing
from transformers import (
  ModernBertConfig,
  ModernBertForMaskedLM,
  PreTrainedTokenizerFast,
)

_OUTPUT_DIR = Path(__file__).resolve().parent / "modernbert"
_SPECIAL = {
  "unk_token": "[UNK]",
  "cls_token": "[CLS]",
  "sep_token": "[SEP]",
  "pad_token": "[PAD]",
  "mask_token": "[MASK]",
}
_MODEL = {
  "hidden_size": 24,
  "num_hidden_layers": 5,
  "num_attention_heads": 2,
  "intermediate_size": 32,
  "max_position_embeddings": 96,
  "local_attention": 8,
  "global_rope_theta": 500.0,
  "local_rope_theta": 40.0,
}
# Positions whose logits are kept.
_SCORED = 3
_PROMPTS = {"query": "search_query: ", "document": "search_document: "}
_TEXTS = (
  "the Queen of England married Prince Albert in a castle near the river",
  "Ada Lovelace and J. R. R. Tolkien wrote songs (and stories) in the U.S.",
  "Zoë Çelik saw the opera in Kraków, a wall-painting and 北京 station!",
  "half of it is ½ of a fine paper; ☃ built railways-and-towers in 1987",
  "Army",
  "AT&T's first ship sailed west, past O'Brien's mill... and the son's wife",
)


def _tokenizer() -> PreTrainedTokenizerFast:
  """Returns a tokenizer of ModernBERT's kind: its padding has the last id."""
  tokenizer = Tokenizer(models.BPE())
  tokenizer.normalizer = normalizers.NFC()
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
  )
  tokenizer.train_from_iterator([*_TEXTS, *_PROMPTS.values()] * 3, trainer)
  tokenizer.add_special_tokens([*_SPECIAL.values()])
  ids = {piece: tokenizer.token_to_id(piece) for piece in _SPECIAL.values()}
  tokenizer.post_processor = TemplateProcessing(
    single="[CLS] $A [SEP]",
    pair="[CLS] $A [SEP] $B [SEP]",
    special_tokens=[(piece, ids[piece]) for piece in ("[CLS]", "[SEP]")],
  )
  return PreTrainedTokenizerFast(
    tokenizer_object=tokenizer,
    model_input_names=["input_ids", "attention_mask"],
    **_SPECIAL,
  )


def main() -> None:
  torch.manual_seed(0)
  tokenizer = _tokenizer()
  config = ModernBertConfig(
    vocab_size=len(tokenizer) + 3,
    pad_token_id=tokenizer.pad_token_id,
    cls_token_id=tokenizer.cls_token_id,
    sep_token_id=tokenizer.sep_token_id,
    **_MODEL,
  )
  model = ModernBertForMaskedLM(config).eval()
  for name, parameter in model.named_parameters():
    center = 1.0 if "norm" in name else 0.0
    torch.nn.init.normal_(parameter, center, 0.2)
  masked_lm, sentence = _OUTPUT_DIR / "masked_lm", _OUTPUT_DIR / "sentence"
  model.save_pretrained(masked_lm)
  tokenizer.save_pretrained(masked_lm)
  batch = tokenizer([*_TEXTS], padding=True, return_tensors="pt")
  with torch.no_grad():
    output, hidden = model(**batch), model.model(**batch).last_hidden_state
  np.savez_compressed(
    masked_lm / "expected.npz",
    token_ids=batch["input_ids"].numpy(),
    is_token=batch["attention_mask"].numpy(),
    hidden=hidden.numpy(),
    logits=output.logits[:, :_SCORED].numpy(),
  )
  encoder = _OUTPUT_DIR / "encoder"
  model.model.save_pretrained(encoder)
  tokenizer.save_pretrained(encoder)
  chain = [
    Transformer(str(encoder)),
    Pooling(config.hidden_size, pooling_mode="lasttoken"),
    Normalize(),
  ]
  embedder = SentenceTransformer(modules=chain, prompts=_PROMPTS)
  embedder.save(str(sentence))
  expected = []
  for name, prompt in _PROMPTS.items():
    vectors = embedder.encode([*_TEXTS], prompt_name=name)
    expected += [
      {
        "prompt": name,
        "text": text,
        "token_ids": tokenizer(prompt + text)["input_ids"],
        "vector": vector.tolist(),
      }
      for text, vector in zip(_TEXTS, vectors, strict=True)
    ]
  (sentence / "expected.json").write_text(json.dumps(expected, indent=1))
  for path in [*encoder.iterdir(), sentence / "README.md"]:
    path.unlink()
  encoder.rmdir()


if __name__ == "__main__":
  main()

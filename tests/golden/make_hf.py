"""Makes `hf_*` and `multilingual`: what transformers computes.

    .venv-peers/bin/python -m tests.golden.make_hf

Each model is a tiny one, in a folder that `save_pretrained` writes.
`expected.npz` in it has the input tokens and the outputs; `expected.json` of a
tagger, sentences and the entities that transformers' pipeline finds in them.
`hf_bert` has

| folder | parameters |
| --- | --- |
| `with_pooler` | encoder and pooler, without a prefix |
| `masked_lm` | encoder, prefixed `bert.`, and masked-LM head |

`harness/peers/realm.py` says what `hf_realm` has, and `t5.py` there what
`hf_t5` has. `expected.json` of `multilingual` has the tokens of each sentence,
between spaces. The `vocab.txt` there is one that
`realm_jax.text.vocabulary_training` has trained. `unicode` has texts of
characters from all of Unicode, and what three of BERT's tokenizers make of
each: a list of words.
"""

import itertools
import json
import random
import string
import sys
import tempfile
import unicodedata
from pathlib import Path

import torch
from transformers import (
  BertConfig,
  BertForMaskedLM,
  BertForTokenClassification,
  BertModel,
  BertTokenizerFast,
  pipeline,
)

from harness.peers import realm, t5
from harness.peers.random_models import (
  EXPECTED,
  RandomInputs,
  as_inputs,
  randomize,
  save_arrays,
)

_OUTPUT_DIR = Path(__file__).resolve().parent
_MODEL = {
  "hidden_size": 24,
  "num_hidden_layers": 2,
  "num_attention_heads": 2,
  "intermediate_size": 48,
  "max_position_embeddings": 64,
}
_QUERY_LENGTH, _BLOCK_LENGTH = 12, 30
_COUNT = 4
# Lower case, and whether accents are removed: None does with lower case.
_NORMALIZATIONS = ((True, None), (True, False), (False, None))
# Characters of Unicode 3.2 whose category has changed since Unicode 8.
_CHANGED = "\u166d\u1734"
# Positions in the joint input of each query and the body of its block.
_POSITIONS = [1, 3]
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
# Capitals, accents, marks of several scripts, words of one script beside
# another, characters that are ignored, a word of 100 characters and one of 101.
_MULTILINGUAL = (
  "The café's owner, Zoë O'Neill, paid £3.50 (about €4) in 1987!",
  "Wo steht das Straßenschild? Über der Brücke, sagte Frau Müller-Lüdke.",
  "¿Quién llegó primero a los EE. UU.? El señor Ibáñez llegó en otoño.",
  "Où est l'élève? Là-bas, près du château de Noël.",
  "Ёжик живёт в Санкт-Петербурге; его друг, Йозеф, уехал в объезд.",
  "Ποιος έγραψε την ιστορία; Ο Οδυσσέας ταξίδεψε στην Ιθάκη.",
  "وُلد الكاتب في القاهرة، ثم سافر إلى آسيا؛ أين يعيش الآن؟",
  "कवि का जन्म दिल्ली में हुआ था। वह क़िला \u0921\u093c\u0930 और ज़मीन देखता है।",
  "ประเทศไทยมีเมืองหลวงชื่อกรุงเทพฯ และแม่น้ำเจ้าพระยาไหลผ่านใจกลางเมือง",
  "北京是中国的首都。長城在北邊，有2000年的历史！",
  "東京タワーは1958年に建てられた。ひらがなとカタカナを書く。",
  "서울은 한국의 수도이다. 한강이 도시를 지난다.",
  "Hà Nội là thủ đô của Việt Nam, nằm bên sông Hồng.",
  "İstanbul'da yaşayan Işık, ağaçların gölgesinde oturdu.",
  "\ufeffzero\u200bwidth, soft\u00adhyphen, می\u200cخواهم, क्\u200dष",
  "a\u00a0b\u3000c\td",
  "ﬁne ½ ™ № … “quotes” «guillemets» 「鉤」 → ☃ 😀 e\u0301",
  f"{'ก' * 100} {'ก' * 101} {'n' * 100} {'n' * 101}",
)
_LABELS = ("O", *(f"{p}-{k}" for k in "MISC PER ORG LOC".split() for p in "BI"))
_MARKS = ("!", "'", "(", ")", ",", "-", ".", "?")
_WORDS = """
  album army battle book born bridge britain built canal castle castles century
  church city coast college country court crown died east emperor england europe
  family father field first forest founded france german great harbour house
  island king lake land later london long married mill moon mother mountain name
  north novel ocean opera palace paper paris people poet port prince queen
  railway red river road roman rome school sea second ship ships small son song
  south state station stone story street temple theatre third tower town train
  tree university valley village wall war water west white wife wind winter won
  wood world writer written wrote year years york young
""".split()
_PIECES = (
  *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
  *_MARKS,
  *string.ascii_lowercase,
  *(f"##{letter}" for letter in string.ascii_lowercase),
  "##ing",
  *_WORDS,
)
_CASED_PIECES = (
  *_PIECES,
  *string.ascii_uppercase,
  *("ë", "##ë", "ó", "##ó", "Queen", "Prince", "England", "Army", "##ada"),
)


def _make_berts(output_dir: Path, vocab: Path) -> None:
  inputs = RandomInputs([*_PIECES], seed=0)
  tokenizer = BertTokenizerFast(vocab_file=str(vocab))
  config = BertConfig(vocab_size=len(_PIECES), **_MODEL)
  torch.manual_seed(0)
  queries = [inputs.query(_QUERY_LENGTH) for _ in range(_COUNT)]
  blocks = [inputs.block(_BLOCK_LENGTH) for _ in range(_COUNT)]
  query = as_inputs(inputs, queries, _QUERY_LENGTH)
  block = as_inputs(inputs, blocks, _BLOCK_LENGTH)
  length = _QUERY_LENGTH + _BLOCK_LENGTH
  pairs = zip(queries, blocks, strict=True)
  joint = as_inputs(inputs, [inputs.joint(*p, length) for p in pairs], length)
  for name, network in (
    ("with_pooler", BertModel(config)),
    ("masked_lm", BertForMaskedLM(config)),
  ):
    randomize(network)
    network.save_pretrained(output_dir / name)
    tokenizer.save_pretrained(output_dir / name)
    arrays = {"query": query["input_ids"], "block": block["input_ids"]}
    encoder = network.bert if name == "masked_lm" else network
    with torch.no_grad():
      for side, batch in (("query", query), ("block", block)):
        output = encoder(**batch)
        arrays[f"{side}_hidden"] = output.last_hidden_state
        if name == "with_pooler":
          arrays[f"{side}_pooled"] = output.pooler_output
      if name == "masked_lm":
        logits = network(**joint).logits
        arrays["mask_positions"] = _POSITIONS
        arrays["joint_logits"] = logits[:, _POSITIONS]
    save_arrays(output_dir / name / EXPECTED, arrays)


def _make_tagger(output_dir: Path, vocab: Path, *, cased: bool) -> None:
  """Makes a tagger, with or without capitals and accents."""
  tokenizer = BertTokenizerFast(vocab_file=str(vocab), do_lower_case=not cased)
  config = BertConfig(
    vocab_size=len(tokenizer),
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
  network.save_pretrained(output_dir)
  tokenizer.save_pretrained(output_dir)
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


def _write_multilingual_tokens(output_dir: Path) -> None:
  vocab = str(output_dir / "vocab.txt")
  tokenizer = BertTokenizerFast(vocab_file=vocab, do_lower_case=False)
  rows = [[text, " ".join(tokenizer.tokenize(text))] for text in _MULTILINGUAL]
  lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
  text = f"[\n{lines}\n]\n"
  (output_dir / "expected.json").write_text(text, encoding="utf-8")


def _write_unicode(output_dir: Path) -> None:
  rng = random.Random(0)
  # Characters of an old Unicode, for the tokenizers know Unicode 8, and no
  # surrogates.
  groups: dict[str, list[str]] = {}
  for character in map(chr, range(sys.maxunicode + 1)):
    name = unicodedata.ucd_3_2_0.category(character)
    if name not in ("Cn", "Cs") and character not in _CHANGED:
      groups.setdefault(name, []).append(character)
  # Every kind of character is as frequent, and letters that have accents,
  # capitals or compatibility forms are.
  unstable = [
    c
    for c in itertools.chain(*groups.values())
    if c != unicodedata.normalize("NFKC", c).casefold()
  ]
  kinds = [*groups.values(), [*string.ascii_letters], unstable, unstable]
  texts = [
    "".join(rng.choice(rng.choice(kinds)) for _ in range(24)) for _ in range(80)
  ]
  tokenizers = [
    BertTokenizerFast(
      vocab_file=str(output_dir.parent / "multilingual" / "vocab.txt"),
      do_lower_case=lowercase,
      strip_accents=strip_accents,
    ).backend_tokenizer
    for lowercase, strip_accents in _NORMALIZATIONS
  ]
  lines = []
  for text in texts:
    words = []
    for tokenizer in tokenizers:
      normalized = tokenizer.normalizer.normalize_str(text)
      found = tokenizer.pre_tokenizer.pre_tokenize_str(normalized)
      words.append([word for word, _ in found])
    lines.append(json.dumps([text, *words]))
  joined = ",\n".join(lines)
  path = output_dir / "expected.json"
  path.write_text(f"[\n{joined}\n]\n", encoding="utf-8")


def main() -> None:
  """Writes all files anew, each JSON file of a model on one line."""
  with tempfile.TemporaryDirectory() as folder:
    vocab, cased_vocab = (Path(folder, name) for name in ("vocab.txt", "cased"))
    vocab.write_text("\n".join(_PIECES) + "\n", encoding="utf-8")
    cased_vocab.write_text("\n".join(_CASED_PIECES) + "\n", encoding="utf-8")
    _make_berts(_OUTPUT_DIR / "hf_bert", vocab)
    realm.make_all(_OUTPUT_DIR / "hf_realm", vocab, size="tiny")
    t5.make_all(_OUTPUT_DIR / "hf_t5", size="tiny")
    _make_tagger(_OUTPUT_DIR / "hf_tagger" / "uncased", vocab, cased=False)
    _make_tagger(_OUTPUT_DIR / "hf_tagger" / "cased", cased_vocab, cased=True)
  for path in _OUTPUT_DIR.glob("hf_*/**/*.json"):
    content = json.loads(path.read_text(encoding="utf-8"))
    text = json.dumps(content, ensure_ascii=False)
    path.write_text(f"{text}\n", encoding="utf-8")
  _write_multilingual_tokens(_OUTPUT_DIR / "multilingual")
  _write_unicode(_OUTPUT_DIR / "unicode")


if __name__ == "__main__":
  main()

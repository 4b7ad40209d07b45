"""Makes `tests/golden/multilingual`: tokens of transformers' cased BERT.

    .venv/bin/python -m tests.golden.make_multilingual --vocabulary
    .venv-peers/bin/python -m tests.golden.make_multilingual

The first trains `vocab.txt` on the sentences, in the project's environment, and
the second writes `expected.json`: the sentences, each with its tokens, between
spaces.
"""

import json
import sys
from pathlib import Path

OUTPUT_DIR = Path(__file__).resolve().parent / "multilingual"
_SIZE = 600
# Capitals, accents, marks of several scripts, words of one script beside
# another, characters that are ignored, a word of 100 characters and one of 101.
_SENTENCES = (
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


def main() -> None:
  """Writes one of the files."""
  path = OUTPUT_DIR / "vocab.txt"
  if sys.argv[1:] == ["--vocabulary"]:
    from realm_jax.text.vocabulary_training import train_vocabulary
    from realm_jax.text.wordpieces import write_pieces

    write_pieces(path, train_vocabulary(_SENTENCES, _SIZE, cased=True))
    return
  from transformers import BertTokenizerFast

  tokenizer = BertTokenizerFast(vocab_file=str(path), do_lower_case=False)
  rows = [[text, " ".join(tokenizer.tokenize(text))] for text in _SENTENCES]
  path = OUTPUT_DIR / "expected.json"
  lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
  path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
  main()

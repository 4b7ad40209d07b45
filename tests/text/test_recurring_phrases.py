"""Phrases that recur in a corpus are tagged, in scripts without capitals."""

import pickle

import pytest

from realm_jax.text.recurring_phrases import RecurringPhrases, count_phrases
from realm_jax.text.salient_spans import default_tagger, find_tagger

# Paragraphs in which one name recurs between various words.
ARABIC = [
  "ولد سليم النجار في مدينة صغيرة قرب البحر.",
  "كتب سليم النجار روايته الأولى بعد الحرب.",
  "قرأ الناس قصائد سليم النجار بإعجاب كبير.",
  "تقع القرية بين جبلين وفيها سوق قديم.",
]
HINDI = [
  "कवि मोहन राकेश का जन्म पहाड़ों पर हुआ।",
  "लोग मोहन राकेश की कविता पढ़ते हैं।",
  "बाद में मोहन राकेश ने नाटक लिखा।",
  "गाँव के पास एक पुरानी नदी बहती है।",
]
CHINESE = [
  "诗人沈青禾生于江边的小城。",
  "读者喜欢沈青禾写的故事。",
  "后来沈青禾搬到山里居住。",
  "桥下有一条河，河边种满柳树。",
  "那座桥在1987年建成，共有24个拱。",
  "这条路在1990年修好，长达38公里。",
  "他在2003年离开，走了12公里。",
]
THAI = ["เมืองเชียงแสนงาม", "ไปเชียงแสนวันนี้", "รักเชียงแสนมาก", "ฝนตกหนัก"]


def tagged(tagger, text: str) -> list[tuple[str, str]]:
  encoded = text.encode()
  return [(encoded[s:t].decode(), kind) for s, t, kind in tagger(text, "")]


@pytest.mark.parametrize(
  ("texts", "name"),
  [
    (ARABIC, "سليم النجار"),
    (HINDI, "मोहन राकेश"),
    (CHINESE, "沈青禾"),
    (THAI, "เชียงแสน"),
  ],
)
def test_a_name_that_recurs_is_tagged(texts, name):
  tagger = pickle.loads(pickle.dumps(count_phrases(texts)))
  for text in texts[:3]:
    assert (name, "phrase") in tagged(tagger, text + "\n" + texts[3])
  # At most twelve of a hundred words are tagged, each once.
  text = "\n".join(texts * 5)
  spans = tagged(tagger, text)
  characters = {id(CHINESE): 2, id(THAI): 5}.get(id(texts))
  words = len(text) / characters if characters else len(text.split())
  assert 0 < len(spans) <= 0.12 * words
  assert len({span for span, _ in spans}) == len(spans)
  # It is no phrase of a corpus that has it once.
  once = count_phrases([texts[0], texts[3]])
  assert name not in dict(tagged(once, texts[0]))


def test_numbers_are_tagged_with_their_units_and_latin_words_as_they_are():
  tagger = count_phrases(CHINESE)
  text = "1987年，他走了38公里到 Lower Velt 去看望一位老人，得票27-30%，共7。"
  kinds = dict(tagged(tagger, text * 3))
  assert kinds["1987年"] == "date"
  assert kinds["38公里"] == "quantity"
  assert kinds["27-30%"] == kinds["7"] == "number"
  assert kinds["Lower Velt"] == "name"


def test_languages_but_english_have_it_by_default():
  codes = ("zh", "th", "es", "de")
  assert [default_tagger(c) for c in codes] == ["recurring"] * 4
  assert default_tagger("en") == "rules"
  assert find_tagger("recurring", "de") == RecurringPhrases("de")
  # Texts without phrases give none.
  tagger = count_phrases(["", "。！", "12", "12"])
  assert not tagger.scores
  assert tagger("。\n", "") == []

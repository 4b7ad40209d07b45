"""Learns wordpieces from texts, with TensorFlow Text's learner."""

import bisect
import collections
import functools
import itertools
import string
from collections.abc import Iterable

from absl import logging
from tensorflow_text.tools.wordpiece_vocab import (
  wordpiece_tokenizer_learner_lib as learner,
)

from realm_jax.text.normalization import Normalization, character_table
from realm_jax.text.vocabulary import SPECIAL_PIECES, VocabularyError
from realm_jax.text.wordpieces import CONTINUATION, LONGEST_WORD

# Texts that are normalized in one call while counting words: enough to hide its
# fixed cost, and few enough to need little memory.
_TEXTS_PER_CALL = 512
# Length beyond which words are cut before pieces are learned from them, and the
# largest number of such words.
_LONG_TO_LEARN = 24
_MOST_LONG_WORDS = 20_000
# Number of distinct words that are counted before the rarest are dropped, and
# number of substrings of words to learn from, which take 100 bytes each.
_MOST_WORDS = 4_000_000
_MOST_PARTS = 8_000_000


def train_vocabulary(
  texts: Iterable[str], size: int, *, cased: bool = False
) -> list[str]:
  """Learns wordpieces from texts.

  The characters of ASCII are always pieces. The most frequent other characters
  get up to half of the remaining slots.

  The learner keeps every piece that occurs at least `threshold` times, not
  counting its occurrences in longer pieces that it keeps. So every *word* with
  `threshold` occurrences is one piece, and so is every such ideograph. This
  function chooses the lowest threshold whose vocabulary fits in `size`. It
  fills the remaining slots with the remaining characters, and then with pieces
  of the next lower threshold. If all words fit, each is one piece.

  The texts are read once, and only the counts of up to four million words are
  in memory.

  Args:
    texts: Texts to learn from.
    size: Number of pieces.
    cased: Whether pieces keep capitals and accents.

  Raises:
    VocabularyError: The texts have no words, or `size` is too small.
  """
  words = _count_words(texts, cased=cased)
  if not words:
    raise VocabularyError(
      "the input has no words to learn wordpieces from; give files with texts"
    )
  # With all of ASCII, as in BERT's vocabularies, the pieces can also spell
  # questions and other texts that the vocabulary was not trained on.
  letters = string.ascii_letters if cased else string.ascii_lowercase
  reserved = [*SPECIAL_PIECES, *string.punctuation]
  for character in string.digits + letters:
    reserved += [character, CONTINUATION + character]
  if size < len(reserved):
    raise VocabularyError(
      f"a vocabulary of {size} pieces is too small: ASCII's characters alone "
      f"take {len(reserved)}; give at least that many"
    )
  characters = collections.Counter[str]()
  for word, count in words.items():
    for character in word:
      characters[character] += count
  # Other characters, such as ideographs and punctuation, are words themselves.
  in_words = {c for word in words if len(word) > 1 for c in word}
  commonest = sorted(characters, key=lambda c: (-characters[c], c))
  forms = [
    [c, CONTINUATION + c] if c in in_words else [c]
    for c in commonest
    if c not in reserved
  ]
  sizes = itertools.accumulate(map(len, forms))
  half = (size - len(reserved)) // 2
  kept = [form for form, n in zip(forms, sizes, strict=True) if n <= half]
  learnable = _learnable(words, {*reserved, *(form[0] for form in kept)})
  alone = [c for c in commonest if c not in in_words]
  # At this threshold, the words alone are more than the free slots.
  num_free = size - len(reserved) - sum(map(len, kept))
  counts = [count for _, count in learnable.most_common()]
  too_low = counts[num_free] if num_free < len(counts) else 0

  @functools.cache
  def learned(threshold: int) -> list[str]:
    pieces = [*reserved, *itertools.chain(*kept)]
    # The learner fails if there is nothing to learn.
    if learnable:
      pieces = learner.learn(
        learnable,
        size,
        pieces,
        upper_thresh=threshold,
        lower_thresh=threshold,
        max_unique_chars=size,
      )
    pieces += [c for c in alone if characters[c] >= threshold]
    return [*dict.fromkeys(pieces)]

  def fits(threshold: int) -> bool:
    return threshold > too_low and len(learned(threshold)) <= size

  least = 1
  while not fits(least):
    least *= 2
  least = bisect.bisect_left(range(least), True, least // 2 + 1, key=fits)
  rest = [*itertools.chain(*forms), *(learned(least - 1) if least > 1 else [])]
  pieces = [*dict.fromkeys([*learned(least), *rest])][:size]
  covered = sum(characters[piece] for piece in pieces)
  logging.info(
    "The vocabulary has %d pieces, and %.3f %% of the text's characters",
    len(pieces),
    100 * covered / characters.total(),
  )
  return pieces


def _count_words(
  texts: Iterable[str], *, cased: bool
) -> collections.Counter[str]:
  """Counts normalized words, split like the tokenizer's."""
  table = character_table(Normalization.of(cased=cased))
  counts = collections.Counter[str]()
  remaining = iter(texts)
  while batch := list(itertools.islice(remaining, _TEXTS_PER_CALL)):
    counts.update(table.normalize(batch).words()[0])
    rarest = 0
    while len(counts) > _MOST_WORDS:
      rarest += 1
      kept = {word: n for word, n in counts.items() if n > rarest}
      counts = collections.Counter(kept)
  for piece in SPECIAL_PIECES:
    counts.pop(piece, None)
  return counts


def _learnable(
  words: collections.Counter[str], characters: set[str]
) -> collections.Counter[str]:
  """Returns the words that pieces are learned from, with their counts.

  Only words that consist of these characters are included. In texts without
  spaces, few words occur twice, and long ones would cost the learner minutes
  and gigabytes. So long words are cut, and sampled if there are too many. If
  there are too many words altogether, the rarest are left out.
  """
  spelled = [w for w in words if len(w) > 1 and characters.issuperset(w)]
  learnable = collections.Counter(
    {word: words[word] for word in spelled if len(word) <= _LONG_TO_LEARN}
  )
  long_words = [
    word for word in spelled if _LONG_TO_LEARN < len(word) <= LONGEST_WORD
  ]
  stride = len(long_words) // _MOST_LONG_WORDS + 1
  for word in long_words[::stride]:
    for start in range(0, len(word), _LONG_TO_LEARN):
      part = word[start : start + _LONG_TO_LEARN]
      learnable[part] += stride * words[word]
  ranked = learnable.most_common()
  num_parts = itertools.accumulate(
    len(w) * (len(w) + 1) // 2 for w, _ in ranked
  )
  most = bisect.bisect_right([*num_parts], _MOST_PARTS)
  return collections.Counter(dict(ranked[:most]))

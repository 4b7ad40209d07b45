"""Questions as text: which of two are the same."""

import re
import unicodedata

_APOSTROPHES = re.compile("['’]")
_NO_WORD = re.compile(r"[\W_]+")


def normalize_question(text: str) -> str:
  """Returns a form that two editions of one question share.

  Case, accents, punctuation and white space do not count, so that "Who wrote
  'Emma'?" equals "who wrote emma". Compare questions by it before one set is
  held out from another.
  """
  text = unicodedata.normalize("NFKD", text).casefold()
  text = "".join(c for c in text if not unicodedata.combining(c))
  text = _APOSTROPHES.sub("", text)
  return " ".join(_NO_WORD.sub(" ", text).split())

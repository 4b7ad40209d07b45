"""Languages by their ISO 639-1 codes, and the scripts of texts."""

import collections
import difflib
import functools
import unicodedata

ENGLISH = "en"
# Pairs of a code and an English name.
_NAMES = """
aa Afar, ab Abkhazian, ae Avestan, af Afrikaans, ak Akan, am Amharic,
an Aragonese, ar Arabic, as Assamese, av Avaric, ay Aymara, az Azerbaijani,
ba Bashkir, be Belarusian, bg Bulgarian, bi Bislama, bm Bambara, bn Bengali,
bo Tibetan, br Breton, bs Bosnian, ca Catalan, ce Chechen, ch Chamorro,
co Corsican, cr Cree, cs Czech, cu Church Slavonic, cv Chuvash, cy Welsh,
da Danish, de German, dv Divehi, dz Dzongkha, ee Ewe, el Greek, en English,
eo Esperanto, es Spanish, et Estonian, eu Basque, fa Persian, ff Fulah,
fi Finnish, fj Fijian, fo Faroese, fr French, fy Western Frisian, ga Irish,
gd Gaelic, gl Galician, gn Guarani, gu Gujarati, gv Manx, ha Hausa, he Hebrew,
hi Hindi, ho Hiri Motu, hr Croatian, ht Haitian, hu Hungarian, hy Armenian,
hz Herero, ia Interlingua, id Indonesian, ie Interlingue, ig Igbo,
ii Sichuan Yi, ik Inupiaq, io Ido, is Icelandic, it Italian, iu Inuktitut,
ja Japanese, jv Javanese, ka Georgian, kg Kongo, ki Kikuyu, kj Kuanyama,
kk Kazakh, kl Kalaallisut, km Khmer, kn Kannada, ko Korean, kr Kanuri,
ks Kashmiri, ku Kurdish, kv Komi, kw Cornish, ky Kyrgyz, la Latin,
lb Luxembourgish, lg Ganda, li Limburgish, ln Lingala, lo Lao, lt Lithuanian,
lu Luba-Katanga, lv Latvian, mg Malagasy, mh Marshallese, mi Maori,
mk Macedonian, ml Malayalam, mn Mongolian, mr Marathi, ms Malay, mt Maltese,
my Burmese, na Nauru, nb Norwegian Bokmål, nd North Ndebele, ne Nepali,
ng Ndonga, nl Dutch, nn Norwegian Nynorsk, no Norwegian, nr South Ndebele,
nv Navajo, ny Chichewa, oc Occitan, oj Ojibwa, om Oromo, or Oriya, os Ossetian,
pa Punjabi, pi Pali, pl Polish, ps Pashto, pt Portuguese, qu Quechua,
rm Romansh, rn Rundi, ro Romanian, ru Russian, rw Kinyarwanda, sa Sanskrit,
sc Sardinian, sd Sindhi, se Northern Sami, sg Sango, si Sinhala, sk Slovak,
sl Slovenian, sm Samoan, sn Shona, so Somali, sq Albanian, sr Serbian, ss Swati,
st Southern Sotho, su Sundanese, sv Swedish, sw Swahili, ta Tamil, te Telugu,
tg Tajik, th Thai, ti Tigrinya, tk Turkmen, tl Tagalog, tn Tswana, to Tonga,
tr Turkish, ts Tsonga, tt Tatar, tw Twi, ty Tahitian, ug Uyghur, uk Ukrainian,
ur Urdu, uz Uzbek, ve Venda, vi Vietnamese, vo Volapük, wa Walloon, wo Wolof,
xh Xhosa, yi Yiddish, yo Yoruba, za Zhuang, zh Chinese, zu Zulu
"""
LANGUAGES = {
  entry[:2]: entry[3:] for entry in " ".join(_NAMES.split()).split(", ")
}
# Letters that are looked at for the script of a text.
_NUM_SAMPLED = 64
# Japanese is written in all of them.
_EAST_ASIAN = ("Cjk", "Hiragana", "Katakana", "Halfwidth")


class LanguageError(ValueError):
  """A code that is no language's; the message names near ones."""


def require_language(code: str) -> str:
  """Returns a code of ISO 639-1; raises `LanguageError` if it is none."""
  if code in LANGUAGES:
    return code
  given = code.strip().lower()
  by_name = {name.lower(): code for code, name in LANGUAGES.items()}
  near = [
    *(c for name, c in by_name.items() if name.startswith(given)),
    *(by_name[n] for n in difflib.get_close_matches(given, by_name)),
    # en-US, eng.
    *(c for c in LANGUAGES if c == given[:2]),
  ] or [c for c in LANGUAGES if c[0] == given[0]]
  shown = ", ".join(
    f"{code} ({LANGUAGES[code]})" for code in [*dict.fromkeys(near)][:8]
  )
  raise LanguageError(
    f"{code!r} is no language's code of ISO 639-1; near it: {shown or 'none'}"
  )


@functools.cache
def _script_of(character: str) -> str:
  """Returns the script of a letter; empty of another character."""
  if not character.isalpha():
    return ""
  name = unicodedata.name(character, "").split(" ")[0].capitalize()
  return "Chinese or Japanese" if name in _EAST_ASIAN else name


def script(text: str) -> str:
  """Returns the script, such as "Latin", of most letters of a sample.

  It is empty if these are no letters.
  """
  if text.isascii():
    return "Latin" if any(map(str.isalpha, text[:_NUM_SAMPLED])) else ""
  sample = text[:: len(text) // _NUM_SAMPLED + 1]
  counts = collections.Counter(map(_script_of, sample))
  del counts[""]
  return max(counts, key=counts.__getitem__, default="")

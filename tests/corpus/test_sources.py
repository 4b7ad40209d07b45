"""Reading JSON Lines, and what is said of lines that are not."""

import codecs
import json

import pytest

from realm_jax.corpus import InputError
from realm_jax.corpus.documents import Document, RowReader
from realm_jax.corpus.sources import DocumentSource


def read(*paths, **arguments) -> list[Document]:
  source = DocumentSource([*map(str, paths)], RowReader(**arguments))
  return list(source.documents())


def test_documents_by_hand(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_text(
    '{"title": "Velt", "text": "A caf\\u00e9.", "id": "v", "url": "u:v"}\n'
    '{"title": "Ada", "text": "Stone &amp; river", "id": 7}\n'
    '{"title": "a", "text": "b"}\n'
  )
  velt, ada, third = read(path)
  assert velt[:4] == ("v", "Velt", "A café.", "u:v")
  assert ada[:4] == ("7", "Ada", "Stone & river", "")
  assert read(path, unescape_html=False)[1].text == "Stone &amp; river"
  # An id of the contents is stable: `printf 'a\\0b' | b2sum -l 96` prints it.
  assert third.id == "5f9bf221bb2f0e9f33d31a72"
  assert RowReader().read(b'{"title": "ab", "text": ""}').id != third.id


def test_pieces_are_the_rows_in_order(tmp_path):
  path = tmp_path / "a.jsonl"
  rows = [json.dumps({"title": f"é{i}", "text": "x" * i}) for i in range(9)]
  # A byte order mark, ends of lines as on Windows, and none at the end.
  path.write_bytes(codecs.BOM_UTF8 + "\r\n".join(rows).encode())
  source = DocumentSource([str(path)], RowReader())
  assert [d.title for d in source.documents()] == [f"é{i}" for i in range(9)]
  assert source.num_bytes == path.stat().st_size
  for piece_bytes, most in ((1, 1), (70, 2), (1 << 20, 9)):
    pieces = list(source.pieces(piece_bytes))
    assert [piece.number for piece in pieces] == [*range(len(pieces))]
    assert max(len(piece.documents) for piece in pieces) == most
    assert [d for p in pieces for d in p.documents] == [*source.documents()]


@pytest.mark.parametrize(
  ("line", "message"),
  [
    (b'{"title": "a", "paragraph": "b"}', "no 'text' among 'title', 'para"),
    (b'{"title": "a", "text": "caf\xe9"}', r"byte 28 .* not UTF-8 \(0xe9\)"),
    (rb'{"title": "a", "text": "b\ud800c"}', "half of a surrogate .* 2"),
    (b'{"a":' * 100_000, "too many lists or objects"),
    (b'{"title": "a", "text": "b", "n": %s}' % (b"3" * 5000), "4,300 digits"),
    (b'{"title": 7, "text": "b"}', "'title' is int"),
    (b"", "an empty line"),
    (b"[", "begins a JSON array; write JSON Lines"),
  ],
)  # fmt: skip
def test_a_malformed_line_is_named(tmp_path, line, message):
  path = tmp_path / "a.jsonl"
  good = b'{"title": "a", "text": "b"}\n'
  path.write_bytes(good + line + b"\n" + good.replace(b"a", b"c"))
  with pytest.raises(InputError, match=f"a.jsonl:2: .*{message}") as caught:
    read(path)
  assert "--skip_bad_lines" in str(caught.value)

  source = DocumentSource([str(path)], RowReader(), skip_bad_lines=True)
  assert len(list(source.documents())) == 2
  assert source.summary.skipped == {"malformed lines": 1}
  assert f"{path}:2" in source.summary.first_errors[0]


def test_what_stands_for_nothing_is_nothing(tmp_path):
  path = tmp_path / "a.jsonl"
  lines = ['{"title": null, "text": "b"}', '{"text": "c"}', " ", ""]
  path.write_text("\n".join(lines))
  assert [(one.title, one.text) for one in read(path)] == [("", "b"), ("", "c")]


def test_patterns(tmp_path):
  for name in ("b.jsonl", "a.jsonl", "deep/d.jsonl"):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(f'{{"title": "{name}", "text": "x"}}\n')

  def titles(*patterns):
    found = read(*(tmp_path / pattern for pattern in patterns))
    return [document.title for document in found]

  assert titles("**/*.jsonl") == ["a.jsonl", "b.jsonl", "deep/d.jsonl"]
  assert titles("*.jsonl", "a.*") == ["a.jsonl", "b.jsonl"]
  # A file may be called like a pattern.
  (tmp_path / "a [b].jsonl").write_text('{"title": "own", "text": "x"}\n')
  assert titles("a [b].jsonl") == ["own"]
  with pytest.raises(InputError, match=r"no file matches --input=.*nothing"):
    titles("a.jsonl", "nothing*.jsonl")


@pytest.mark.parametrize(
  "run",
  [
    *("ឃ្លាវែង" * 300, "ປະໂຫຍກ" * 300, "ประโยคยาว" * 300, "ဝါကျရှည်" * 300),
    *("ཚིག་གྲུབ་" * 300, "अगला।" * 300, "جملة،" * 300),
  ],
)
def test_a_text_without_spaces_is_no_long_word(run):
  reader = RowReader()
  document = reader.read(json.dumps({"text": f"{run} a"}).encode())
  assert (document.text, document.long_words) == (f"{run} a", 0)
  document = reader.read(
    json.dumps({"text": f"{run} a {'QUJD' * 300}"}).encode()
  )
  assert (document.text, document.long_words) == (f"{run} a ", 1)

"""Reading JSON Lines, and what is said of lines that are not."""

import codecs
import json

import pytest

from realm_jax.corpus import InputError
from realm_jax.corpus.documents import default_document_id
from realm_jax.corpus.sources import DocumentSource
from realm_jax.corpus.summary import BuildSummary


def read(path, **arguments):
  source = DocumentSource([str(path)], **arguments)
  return list(source.all_entries(BuildSummary()))


def test_a_document_and_its_place(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_text(
    '{"title": "Velt", "text": "A caf\\u00e9.", "id": "v", "url": "u:v"}\n'
    '{"title": "Ada", "text": "Stone &amp; river", "id": 7}\n'
  )
  velt, ada = read(path)
  assert velt[:5] == ("v", "Velt", "A café.", "u:v", f"{path}:1")
  assert ada[:5] == ("7", "Ada", "Stone & river", "", f"{path}:2")
  assert read(path, unescape_html=False)[1].text == "Stone &amp; river"


def test_slices_are_the_rows_in_order(tmp_path):
  path = tmp_path / "a.jsonl"
  rows = [json.dumps({"title": f"é{i}", "text": "x" * i}) for i in range(9)]
  # A byte order mark, ends of lines as on Windows, and none at the end.
  path.write_bytes(codecs.BOM_UTF8 + "\r\n".join(rows).encode())
  whole = read(path)
  assert [document.title for document in whole] == [f"é{i}" for i in range(9)]
  for slice_bytes in (1, 70, 1 << 20):
    source = DocumentSource([str(path)], slice_bytes=slice_bytes)
    slices, repeats = source.scan(BuildSummary())
    assert slices[-1].limit == path.stat().st_size
    found = [
      entry for part in slices for entry in source.entries(part, repeats)
    ]
    assert found == whole
  assert len(slices) == 1


def test_an_id_comes_from_the_contents(tmp_path):
  path = tmp_path / "a.jsonl"
  rows = [("a", "b"), ("a", "c"), ("ab", "")]
  path.write_text(
    "".join(json.dumps({"title": t, "text": x}) + "\n" for t, x in rows)
  )
  ids = [document.id for document in read(path)]
  assert len(set(ids)) == 3
  assert ids == [default_document_id(*row) for row in rows]
  # Stable: what `printf 'a\\0b' | b2sum -l 96` prints.
  assert ids[0] == "5f9bf221bb2f0e9f33d31a72"


@pytest.mark.parametrize(
  ("line", "message"),
  [
    (b"", "an empty line; wanted"),
    (b"{title: 1}", "not JSON"),
    (b'["a", "b"]', "list; wanted"),
    (b'{"text": "b"}', "no 'title' among 'text'"),
    (b'{"title": "a", "paragraph": "b"}', "no 'text' among 'title', 'para"),
    (b'{"title": 3, "text": "b"}', "'title' is int, wanted a string"),
    (b'{"title": "a", "text": "b", "id": []}', "'id' is list, wanted"),
    (b'{"title": "a", "text": "caf\xe9"}', r"byte 28 .* not UTF-8 \(0xe9\)"),
    (rb'{"title": "a", "text": "b\ud800c"}', "half of a surrogate .* 2"),
    (b"[" * 100_000, "nested too deep"),
  ],
)  # fmt: skip
def test_a_malformed_line_is_named(tmp_path, line, message):
  path = tmp_path / "a.jsonl"
  good = b'{"title": "a", "text": "b"}\n'
  path.write_bytes(good + line + b"\n" + good.replace(b"a", b"c"))
  with pytest.raises(InputError, match=f"a.jsonl:2: .*{message}") as caught:
    read(path)
  assert "--skip_bad_lines" in str(caught.value)

  summary = BuildSummary()
  source = DocumentSource([str(path)], skip_bad_lines=True)
  assert len(list(source.all_entries(summary))) == 2
  assert summary.skipped == {"malformed lines": 1}
  assert f"{path}:2" in summary.first_errors[0]


def test_patterns(tmp_path):
  for name in ("b.jsonl", "a.jsonl", "c.txt", "deep/d.jsonl"):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(f'{{"title": "{name}", "text": "x"}}\n')

  def titles(*patterns):
    source = DocumentSource([str(tmp_path / pattern) for pattern in patterns])
    return [document.title for document in source.all_entries(BuildSummary())]

  assert titles("*.jsonl") == ["a.jsonl", "b.jsonl"]
  assert titles("**/*.jsonl") == ["a.jsonl", "b.jsonl", "deep/d.jsonl"]
  assert titles("*.jsonl", "a.*", "c.txt") == ["a.jsonl", "b.jsonl", "c.txt"]
  with pytest.raises(InputError, match=r"no file matches --input=.*nothing"):
    titles("a.jsonl", "nothing*.jsonl")
  with pytest.raises(InputError, match="is a folder"):
    titles("deep")

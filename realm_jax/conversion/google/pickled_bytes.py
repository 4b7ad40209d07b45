"""Byte strings of a pickled numpy array, read without running the pickle.

A pickle is a program that may call anything. `pickletools.genops` of the
standard library splits it into opcodes and runs none of them. The filter in
this file accepts an array of byte strings as numpy writes it (protocols 2 to
5): known opcodes up to the list of the array's items, the items, and known
opcodes after them. Names in the pickle are compared and never looked up.
"""

import os
import pickletools
from array import array
from collections.abc import Iterator
from typing import IO, NamedTuple, TypeAlias, cast

from realm_jax.conversion.errors import ConversionError

WANTED = (
  "want what np.save writes of an array of dtype object that holds byte "
  "strings and nothing else"
)

_CHUNK_BYTES = 1 << 20
# A block of text has about 600 bytes.
_MAX_STRING_BYTES = 1 << 24
# Module and name of whatever numpy's pickles name are shorter.
_MAX_LINE_BYTES = 64
_NAMES = {
  "numpy.core.multiarray _reconstruct": "_reconstruct",
  "numpy._core.multiarray _reconstruct": "_reconstruct",
  "numpy ndarray": "ndarray",
  "numpy dtype": "dtype",
  "_codecs encode": "encode",
  "__builtin__ bytes": "bytes",
  "builtins bytes": "bytes",
}
_SINGLETONS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_OPERATORS = frozenset(
  "MARK EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 TUPLE REDUCE BUILD STOP "
  "EMPTY_LIST APPEND APPENDS".split()
)


class Constant(NamedTuple):
  """A string of the pickle, and the position of its opcode in the file."""

  value: bytes | str
  offset: int

  def __repr__(self) -> str:
    kind = "text (str)" if isinstance(self.value, str) else "a byte string"
    return f"{kind} {self.value[:40]!r}"


# The argument of an opcode, as `genops` gives it.
Argument: TypeAlias = bytes | bytearray | str | int | float | None
# A string, a number, None, a bool, or a name: an operator's or one of `_NAMES`.
Token: TypeAlias = Constant | str | int | None

# _reconstruct(ndarray, (0,), b"b"), then the state (1, (length,), dtype, False,
# [item, …]), where dtype is dtype("O8", False, True) with a state of its own.
# Strings are in tuples, to tell them from names.
_LENGTH_INDEX = 9
_HEAD = (
  *("_reconstruct", "ndarray", 0, "TUPLE1", (b"b",), "TUPLE3", "REDUCE"),
  *("MARK", 1, "length", "TUPLE1"),
  *("dtype", ("O8",), False, True, "TUPLE3", "REDUCE"),
  *("MARK", 3, ("|",), None, None, None, -1, -1, 63, "TUPLE", "BUILD"),
  *(False, "EMPTY_LIST"),
)
_TAIL = ["TUPLE", "BUILD", "STOP"]
_MAX_TOKENS = len(_HEAD) + 4
# The memo's entry for a value to which no array refers.
_NOT_KEPT = -1


class BytesPickle:
  """One pickle of an array of byte strings, read in one pass.

  Where an object is in the array twice, the pickle refers back to the first
  place. To keep memory flat, only the position of each record is remembered,
  and a record referred to is read again.

  Args:
    file: File open for binary reading, which can seek.
    where: Name of the file in errors.
    start: Position of the pickle's first byte.
    count: Number of records that there must be.
  """

  def __init__(self, file: IO[bytes], *, where: str, start: int, count: int):
    self._file = file
    self._where = where
    self._start = start
    self._count = count
    self._offset = start  # Position of the current opcode.
    self._seen = 0
    # The opcodes before the list; then those of one record; then those after.
    self._tokens: list[Token] = []
    self._in_list = self._in_batch = False
    self._length: int | None = None
    # The token that a memo opcode names.
    self._latest: Token = None
    # By memo index: the position of a record's opcode, or −1 − an index into
    # `_kept`.
    self._memo = array("q")
    self._kept: list[Token] = [None]

  def records(self) -> Iterator[bytes]:
    """Yields the byte strings in order."""
    reader = _OpcodeReader(self._file, where=self._where, start=self._start)
    try:
      # `genops` reads, reads lines and asks for positions, and no more.
      for opcode, argument, offset in pickletools.genops(
        cast("IO[bytes]", reader)
      ):
        name, self._offset = opcode.name, cast(int, offset)
        if name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
          self._memoize(argument)
        elif name not in ("FRAME", "PROTO"):
          self._add(self._token(name, argument))
          record = self._take_record() if self._in_list else None
          if record is not None:
            yield record
        elif name == "PROTO" and argument not in (2, 3, 4, 5):
          raise self._error(f"a pickle of protocol {argument}")
    except ConversionError:
      raise
    except ValueError as error:  # `genops` knows no such opcode.
      self._offset = reader.tell()
      raise self._error(str(error)) from error
    if self._in_list or self._tokens != _TAIL:
      raise self._error("an end before the array is complete")
    if not self._seen == self._count == self._length:
      raise self._error(f"{self._seen} records for an array of {self._length}")
    if after := reader.size - reader.tell():
      self._offset = reader.tell()
      raise self._error(f"{after} bytes more behind the array")

  def _error(self, found: str) -> ConversionError:
    return ConversionError(
      f"{self._where} holds {found} at byte {self._offset}, after {self._seen} "
      f"of {self._count} records; {WANTED}. Nothing of it was run"
    )

  def _token(self, name: str, argument: Argument) -> Token:
    """Returns the constant of an opcode, or the operator's name."""
    match argument:
      case bytes():
        return Constant(argument, self._offset)
      case str() if name in ("BINUNICODE", "SHORT_BINUNICODE"):
        return Constant(argument, self._offset)
      case str() if name == "GLOBAL":
        return self._named(argument)
      case int() if name in ("BINGET", "LONG_BINGET"):
        return self._recall(argument)
      case int() if name in ("BININT1", "BININT2", "BININT"):
        return argument
    if name == "STACK_GLOBAL":
      module, attribute = [*self._tokens[-2:], None, None][:2]
      del self._tokens[-2:]
      match module, attribute:
        case Constant(str() as one), Constant(str() as other):
          return self._named(f"{one} {other}")
        case _:
          raise self._error("a name that is not text")
    if name in _SINGLETONS:
      return _SINGLETONS[name]
    if name not in _OPERATORS:
      raise self._error(f"the pickle opcode {name}")
    return name

  def _named(self, name: str) -> str:
    if name not in _NAMES:
      raise self._error(f"the name {name.replace(' ', '.')}")
    return _NAMES[name]

  def _add(self, token: Token) -> None:
    """Adds a token, and begins the list where the array's items begin."""
    tokens = self._tokens
    tokens.append(token)
    if len(tokens) > _MAX_TOKENS:
      raise self._error("more values than an array needs")
    if token == "REDUCE":
      self._make_bytes()
    self._latest = tokens[-1]
    if token == "EMPTY_LIST" and not self._in_list:
      self._length = self._read_head()
      self._in_list = True
      tokens.clear()

  def _read_head(self) -> int:
    """Checks what precedes the list, and returns the array's length."""
    head = [(t.value,) if isinstance(t, Constant) else t for t in self._tokens]
    length = head[_LENGTH_INDEX] if len(head) == len(_HEAD) else None
    if not isinstance(length, int) or head != [
      length if expected == "length" else expected for expected in _HEAD
    ]:
      raise self._error("something else than an array of objects")
    return length

  def _make_bytes(self) -> None:
    """Replaces a call that protocol 2 writes for bytes by the bytes."""
    match self._tokens[-5:]:
      case [
        "encode",
        Constant(str() as text, at),
        Constant("latin1"),
        "TUPLE2",
        _,
      ]:
        self._tokens[-5:] = [Constant(text.encode("latin1"), at)]
      case [*_, "bytes", "EMPTY_TUPLE", _]:
        self._tokens[-3:] = [Constant(b"", self._offset)]

  def _take_record(self) -> bytes | None:
    """Takes a record that is complete; else follows the list's operators."""
    tokens = self._tokens
    match tokens:
      case []:
        return None
      case [Constant(bytes() as record, _)] if self._in_batch:
        pass
      case [Constant(bytes() as record, _), "APPEND"] if not self._in_batch:
        self._latest = None
      case ["MARK"] if not self._in_batch:
        self._in_batch = True
        tokens.clear()
        return None
      case ["APPENDS"] if self._in_batch:
        self._in_batch = False
        tokens.clear()
        return None
      case ["TUPLE"] if not self._in_batch:
        self._in_list = False
        return None
      case ["encode" | "bytes", *_] if len(tokens) < 5:
        return None
      case [Constant()] if not self._in_batch:
        return None
      case _:
        raise self._error(f"{tokens[0]!r} as a record")
    tokens.clear()
    self._seen += 1
    if self._seen > self._count:
      raise self._error("more records than its header says")
    return record

  def _memoize(self, index: Argument) -> None:
    """Remembers the latest token, even if it was taken as a record."""
    if index is not None and index != len(self._memo):
      raise self._error(f"memo {index} where {len(self._memo)} is due")
    token, self._latest = self._latest, None
    if token is None or len(self._kept) > _MAX_TOKENS:
      raise self._error("more references than an array needs")
    if isinstance(token, Constant) and self._in_list:
      is_record = isinstance(token.value, bytes)
      self._memo.append(token.offset if is_record else _NOT_KEPT)
    elif token in _OPERATORS:
      self._memo.append(_NOT_KEPT)
    else:
      self._memo.append(-1 - len(self._kept))
      self._kept.append(token)

  def _recall(self, index: int) -> Token:
    """Returns the token that was memoized."""
    place = self._memo[index] if index < len(self._memo) else _NOT_KEPT
    if place == _NOT_KEPT:
      raise self._error(f"a reference to memo {index}, which no array has")
    return self._read_again(place) if place >= 0 else self._kept[-1 - place]

  def _read_again(self, offset: int) -> Constant:
    """Reads the record at a position, which was read before, by itself."""
    resume = self._file.tell()
    self._file.seek(offset)
    _, value, _ = next(pickletools.genops(self._file))
    self._file.seek(resume)
    match value:
      case bytes():
        return Constant(value, offset)
      case str():  # Protocol 2 writes bytes as text.
        return Constant(value.encode("latin1"), offset)
      case _:  # And the empty ones as a call without arguments.
        return Constant(b"", offset)


class _OpcodeReader:
  """A file as `pickletools.genops` reads it: in chunks, not beyond its end."""

  def __init__(self, file: IO[bytes], *, where: str, start: int):
    self._file = file
    self._where = where
    self.size = file.seek(0, os.SEEK_END)
    file.seek(start)
    # The buffer begins at `_start` in the file and is read up to `_at`.
    self._buffer, self._start, self._at = b"", start, 0

  def tell(self) -> int:
    """Returns the position of the next byte in the file."""
    return self._start + self._at

  def read(self, size: int) -> bytes:
    """Returns that many bytes; raises an error for fewer, or too many."""
    if self._at + size > len(self._buffer):
      self._fill(size)
    self._at += size
    return self._buffer[self._at - size : self._at]

  def _fill(self, size: int) -> None:
    # Checked before memory is claimed: a damaged length may say exabytes.
    if self.tell() + size > self.size:
      raise ConversionError(
        f"{self._where} is cut short: at byte {self.tell()} it wants {size} "
        f"more, and ends at {self.size}; copy the file again"
      )
    if size > _MAX_STRING_BYTES:
      raise ValueError(f"a string of {size} bytes")
    rest = self._buffer[self._at :]
    self._buffer = rest + self._file.read(max(size, _CHUNK_BYTES))
    self._start += self._at
    self._at = 0

  def readline(self) -> bytes:
    """Returns the bytes up to the end of a short line."""
    line = b""
    while not line.endswith(b"\n"):
      line += self.read(1)
      if len(line) > _MAX_LINE_BYTES:
        raise ValueError(f"a name of more than {_MAX_LINE_BYTES} bytes")
    return line

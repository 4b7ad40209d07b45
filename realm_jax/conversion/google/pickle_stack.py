"""The stack of a pickle that is an array of byte strings.

Names stand for themselves and what would be calls are recognized, not made: no
object of the pickle comes to be but bytes, text, numbers and tuples of these.
"""

import enum
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

# What stands around an array's items is small.
_MAX_VALUES = 32


class Bytes(NamedTuple):
  """A byte string, and where in the file the opcode is that holds it.

  The empty one may be nowhere: −1.
  """

  value: bytes
  offset: int


class Text(NamedTuple):
  """Text, and where its opcode is; protocol 2 writes byte strings as text."""

  value: str
  offset: int


class Symbol(enum.Enum):
  """What stands for an object; the value is what people call it."""

  MARK = "a mark"
  LIST = "a list"
  NEW_ARRAY = "an array without contents"
  ARRAY = "an array"
  NEW_DTYPE = "a dtype without a state"
  DTYPE_OF_OBJECTS = "a dtype"
  FORGOTTEN = "text within a record"
  RECONSTRUCT = "numpy's _reconstruct"
  NDARRAY = "numpy.ndarray"
  DTYPE = "numpy.dtype"
  ENCODE = "_codecs.encode"
  BYTES = "bytes"


_NAMES = {
  "numpy.core.multiarray _reconstruct": Symbol.RECONSTRUCT,
  "numpy._core.multiarray _reconstruct": Symbol.RECONSTRUCT,
  "numpy ndarray": Symbol.NDARRAY,
  "numpy dtype": Symbol.DTYPE,
  "_codecs encode": Symbol.ENCODE,
  "__builtin__ bytes": Symbol.BYTES,
  "builtins bytes": Symbol.BYTES,
}
# What a record may begin with: protocol 2 calls a function for its bytes.
_MAKERS = (Symbol.ENCODE, Symbol.BYTES)
_DTYPE_STATE = (3, "|", None, None, None, -1, -1, 63)


class PickleStack:
  """Values on a stack, and the operations on them that an array needs.

  Args:
    refuse: raises an error that says what was found.
  """

  def __init__(self, refuse: Callable[[str], NoReturn]):
    self._refuse = refuse
    self._values: list[Any] = []
    self._list_begun = False
    # What the array says of its length, once it is complete.
    self.array_length: int | None = None

  @property
  def top(self) -> Any:
    """The latest value; None where there is none."""
    return self._values[-1] if self._values else None

  @property
  def in_list(self) -> bool:
    """Whether the array's items are being read."""
    return Symbol.LIST in self._values

  @property
  def in_batch(self) -> bool:
    """Whether an item of the array is due, of those that one APPENDS adds."""
    return self._values[-2:] == [Symbol.LIST, Symbol.MARK]

  def push(self, value: Any) -> None:
    """Puts a value on top."""
    self._values.append(value)
    if len(self._values) > _MAX_VALUES:
      self._refuse("more on its stack than an array needs")

  def _pop(self) -> Any:
    if not self._values:
      self._refuse("an operation on nothing")
    return self._values.pop()

  def begin_list(self) -> None:
    """An empty list, the array's."""
    if self._list_begun:
      self._refuse("a second list")
    self._list_begun = True
    self.push(Symbol.LIST)

  def make_tuple(self, size: int | None = None) -> None:
    """A tuple of the latest values: so many, or all after the mark."""
    if size is None:
      items = []
      while (item := self._pop()) is not Symbol.MARK:
        items.append(item)
    else:
      items = [self._pop() for _ in range(size)]
    if Symbol.MARK in items:  # Its items went out as records.
      self._refuse("a tuple as a record")
    if any(tuple in map(type, item) for item in items if type(item) is tuple):
      self._refuse("a tuple in a tuple in a tuple")
    self.push(tuple(reversed(items)))

  def push_name(self, module: str, name: str) -> None:
    """What the pickle names, if it is one of the few that an array needs."""
    symbol = _NAMES.get(f"{module} {name}")
    if symbol is None:
      self._refuse(f"the name {module}.{name}")
    self.push(symbol)

  def name_from_texts(self) -> None:
    """The same, where module and name are the latest two values."""
    name, module = self._pop(), self._pop()
    if not isinstance(name, Text) or not isinstance(module, Text):
      self._refuse(f"the name {describe(module)}.{describe(name)}")
    self.push_name(module.value, name.value)

  def call(self) -> None:
    """What would be a call: one of four, with arguments that are known."""
    arguments, function = self._pop(), self._pop()
    match function, arguments:
      case Symbol.RECONSTRUCT, (Symbol.NDARRAY, (0,), Bytes(b"b")):
        self.push(Symbol.NEW_ARRAY)
      case Symbol.DTYPE, (Text("O8"), 0 | False, 1 | True):
        self.push(Symbol.NEW_DTYPE)
      case Symbol.ENCODE, (Text() as text, Text("latin1")):
        self.push(Bytes(self.encoded(text.value), text.offset))
      case Symbol.BYTES, ():
        self.push(Bytes(b"", -1))
      case _:
        self._refuse(
          f"a call of {describe(function)} with {describe(arguments)}"
        )

  def encoded(self, text: str) -> bytes:
    """The bytes that protocol 2 writes as text."""
    try:
      return text.encode("latin1")
    except UnicodeEncodeError:
      self._refuse("text that stands for no bytes")

  def build(self) -> None:
    """What would set an object's state: that of the dtype, or the array."""
    state, target = self._pop(), self._pop()
    match target, state:
      case Symbol.NEW_DTYPE, tuple() if _plain(state) == _DTYPE_STATE:
        self.push(Symbol.DTYPE_OF_OBJECTS)
      case (
        Symbol.NEW_ARRAY,
        (1, (int() as length,), Symbol.DTYPE_OF_OBJECTS, False, Symbol.LIST),
      ):
        self.array_length = length
        self.push(Symbol.ARRAY)
      case _:
        self._refuse(f"a state for {describe(target)}: {describe(state)}")

  def take_batched_record(self) -> Bytes | None:
    """Takes an item of the array that is complete, before APPENDS adds it."""
    if self._values[-3:-1] != [Symbol.LIST, Symbol.MARK]:
      return None
    if isinstance(self.top, Bytes):
      return self._values.pop()
    if self.top not in _MAKERS:
      self._refuse(f"{describe(self.top)} as a record")
    return None

  def append(self) -> Bytes:
    """APPEND: takes the one record on top."""
    record = self._pop()
    if self.top is not Symbol.LIST or not isinstance(record, Bytes):
      self._refuse(f"{describe(record)} as a record")
    return record

  def end_batch(self) -> None:
    """APPENDS: its records were taken as they came, so a mark is on top."""
    if not self.in_batch:
      self._refuse("an append to something else than the array")
    self._values.pop()

  def require_array(self) -> None:
    """Refuses an end at which the stack holds anything but the array."""
    if self._values != [Symbol.ARRAY]:
      self._refuse("an end before the array is complete")


def _plain(values: tuple) -> tuple:
  return tuple(v.value if isinstance(v, Text) else v for v in values)


def describe(value: Any) -> str:
  """A value for people."""
  match value:
    case Symbol():
      return value.value
    case Bytes():
      return "a byte string"
    case Text(text):
      return f"text (str) {text[:40]!r}"
    case tuple():
      return f"({', '.join(map(describe, value))})"
    case _:
      return repr(value)

"""What the page answers with words: wrong requests, and a full queue."""


class RequestError(ValueError):
  """A request that is malformed, or beyond a limit."""


class RequestTooLongError(RequestError):
  """A request of too many bytes."""


class EditError(ValueError):
  """A block that cannot be edited, or not into this text."""


class BusyError(Exception):
  """Too many requests wait already."""


class ServerError(ValueError):
  """A page that cannot be served."""

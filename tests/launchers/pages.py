"""A page of HTML as a reader meets it."""

from html.parser import HTMLParser

# Elements without an end.
_VOID = {'meta', 'br', 'link', 'img', 'input', 'hr'}
_LOADING = {'src', 'href', 'srcset', 'action', 'data', 'xlink:href', 'poster'}


class Page(HTMLParser):
  """Parses a page, and requires that what begins also ends.

  Attributes:
    elements: names and attributes of all.
    texts: what is shown, style and scripts left out.
    loaded: values of attributes that make a browser fetch something.
  """

  def __init__(self, text: str):
    super().__init__()
    self.elements: list[tuple[str, dict[str, str | None]]] = []
    self.texts: list[str] = []
    self.loaded: list[str | None] = []
    self._open: list[str] = []
    self.feed(text)
    self.close()
    assert not self._open, f'{self._open} never end'

  def handle_starttag(self, tag, attrs):
    self.elements.append((tag, dict(attrs)))
    self.loaded += [value for name, value in attrs if name in _LOADING]
    if tag not in _VOID:
      self._open.append(tag)

  def handle_startendtag(self, tag, attrs):
    self.handle_starttag(tag, attrs)
    if tag not in _VOID:
      self._open.pop()

  def handle_endtag(self, tag):
    assert self._open.pop() == tag

  def handle_data(self, data):
    if data.strip() and not {'style', 'script'} & {*self._open}:
      self.texts.append(data.strip())

  def text(self) -> str:
    """Returns all that is shown."""
    return '\n'.join(self.texts)

  def count(self, tag: str) -> int:
    """Counts elements."""
    return [name for name, _ in self.elements].count(tag)

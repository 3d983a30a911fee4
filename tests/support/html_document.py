"""HTML pages as tests read them."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "wbr", "input"}


class Document(HTMLParser):
    """The page's tags, attributes and text; refuses tags that are not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == [], "tags that are not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open[-1:]:
            self.text += data

    def of(self, name: str) -> list[str]:
        """The values of an attribute, of whatever tag."""
        return [value for _, found, value in self.attributes if found == name]

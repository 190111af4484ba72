"""A strict reader of pages: tags that do not nest, and ids and attributes that are given twice, are errors."""

from html.parser import HTMLParser

VOID = {"meta", "br", "img", "hr", "input", "link"}


class Strict(HTMLParser):
    """Checks that tags nest, ids are unique and no attribute runs anything, and collects tags, attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []
        ids = [attributes["id"] for _, attributes in self.seen if "id" in attributes]
        assert len(set(ids)) == len(ids)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        assert len(found) == len(attrs), f"an attribute of {tag} stands twice"
        assert not any(name.startswith("on") for name in found), (tag, found)
        self.seen.append((tag, found))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

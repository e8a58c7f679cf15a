"""Which kind of page an id is of, and what builds it: "run:/path" is a page of kind "run"."""

from __future__ import annotations

from typing import Any

from rankdeck_app.commands.table import Context
from rankdeck_app.shell.tab import PageFactory, Tab


class PageKinds:
    """The context gets the fact "pageKind.<prefix>" for each kind."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kinds: dict[str, tuple[PageFactory, str]] = {}

    def register(self, prefix: str, factory: PageFactory, title: str = "") -> None:
        assert prefix not in self._kinds, f"page kind {prefix} is registered twice"
        self._kinds[prefix] = factory, title
        self._context.set(f"pageKind.{prefix}", True)

    def factory_of(self, page_id: str) -> PageFactory:
        kind = self._find(page_id)
        assert kind is not None, f"no factory for {page_id}: pass one or register its kind"
        return kind[0]

    def tabs_from(self, records: list[dict[str, Any]]) -> list[Tab]:
        """The saved tabs whose kind is known. The title that was saved may be in another language."""
        tabs = list[Tab]()
        for record in records:
            if (kind := self._find(record.get("id", ""))) is not None:
                factory, title = kind
                tabs.append(Tab.from_saved(record | {"title": title} if title else record, factory))
        return tabs

    def _find(self, page_id: str) -> tuple[PageFactory, str] | None:
        return self._kinds.get(page_id.split(":", 1)[0])

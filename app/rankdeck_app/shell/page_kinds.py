"""Which kind of page an id is of, and what builds it: "run:/path" is a page of kind "run"."""

from __future__ import annotations

from typing import Any

from rankdeck_app.commands.table import Context
from rankdeck_app.shell.tab import PageFactory, Tab


class PageKinds:
    """The context gets the fact "pageKind.<prefix>" for each kind."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._factories: dict[str, PageFactory] = {}

    def register(self, prefix: str, factory: PageFactory) -> None:
        assert prefix not in self._factories, f"page kind {prefix} is registered twice"
        self._factories[prefix] = factory
        self._context.set(f"pageKind.{prefix}", True)

    def factory_of(self, page_id: str) -> PageFactory:
        factory = self._find(page_id)
        assert factory is not None, f"no factory for {page_id}: pass one or register its kind"
        return factory

    def tabs_from(self, records: list[dict[str, Any]]) -> list[Tab]:
        """The saved tabs whose kind is known."""
        kinds = [(record, self._find(record.get("id", ""))) for record in records]
        return [Tab.from_saved(record, factory) for record, factory in kinds if factory is not None]

    def _find(self, page_id: str) -> PageFactory | None:
        return self._factories.get(page_id.split(":", 1)[0])

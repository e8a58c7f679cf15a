"""Comparisons: opening them from anywhere, choosing runs for them, and writing one as a page; and what a run
leaves to be taken along, its report and its weights.

Every comparison is a tab of its own, "compare:1" and so on, that keeps its runs over a restart. The current
one is that of the active tab, or the one that was active last: the side bar adds to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from PySide6.QtCore import QObject, Signal
from shiboken6 import isValid

from rankdeck.base.phrases import phrase
from rankdeck.compare.naming import LEAST_RUNS, MOST_RUNS, RunAt, ats_of
from rankdeck.run.row import RunInfo
from rankdeck.rundir import RunDir
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.chart_commands import Exports
from rankdeck_app.controllers.launching import Launching
from rankdeck_app.controllers.run_tabs import RunTabs
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import tr
from rankdeck_app.shell.floating_list import QuickItem
from rankdeck_app.shell.page import Page
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.kept_file import RecentComparisons
from rankdeck_app.widgets.run_list import details, strategy_title

if TYPE_CHECKING:
    from rankdeck_app.state.comparing import Comparing
    from rankdeck_app.views.compare.page import ComparePage

PAGE_KIND = "compare"


class Comparisons(QObject):
    """`current_changed` carries the current Comparing or None."""

    current_changed = Signal(object)

    def __init__(
        self,
        window: MainWindow,
        session: Session,
        tabs: RunTabs,
        exports: Exports,
        launching: Launching,
    ) -> None:
        super().__init__(window)
        self._launching = launching
        self._window, self._session, self._tabs, self._exports = window, session, tabs, exports
        self.recent = RecentComparisons(
            window.services.state_folder / "comparisons.json", self, disk=window.services.disk
        )
        self.selected_runs: Callable[[], Sequence[RunInfo]] = tuple
        """Those of the list that is in use."""
        self._pages: list[ComparePage] = []
        """The last one that was active comes last."""
        window.editor.register_page_kind(PAGE_KIND, self._make_page)
        window.editor.active_page_changed.connect(self._follow)

    def rows(self) -> list[Command]:
        row = partial(Command, when="activeCompare", menu="Run/4_compare")
        of_run, of = partial(Command, menu="Run/3_this"), self._tabs.on_active
        return [
            Command(
                "compare.runs",
                phrase("Compare: Compare Runs…"),
                self.pick,
                ("Ctrl+K C",),
                menu="Run/4_compare",
            ),
            row("compare.add", phrase("Compare: Add Runs…"), self._add_to_active),
            row("compare.save", phrase("Compare: Save as a Page…"), self._save_active),
            of_run("run.compare", phrase("Run: Compare With…"), of(self.compare_with), when="activeRun"),
            of_run(
                "run.weights",
                phrase("Run: Export Weights…"),
                of(self._ask_weights),
                when="activeRunAgain && !activeRunScript",
            ),
            of_run("run.report", phrase("Run: Save a Report…"), of(self.ask_report), when="activeRun"),
        ]

    # Opening

    def open_compare(self, runs: Iterable[Path | RunAt]) -> ComparePage | None:
        """Show these runs side by side, the first one the baseline; in the tab that shows them already, if
        there is one."""
        ats = list(dict.fromkeys(run if isinstance(run, RunAt) else RunAt(run.absolute()) for run in runs))
        if not ats:
            return None
        for page_id, known in self._open_tabs().items():
            if known == ats:
                return cast("ComparePage", self._window.editor.open(page_id))
        page = cast("ComparePage", self._window.editor.open(f"{PAGE_KIND}:{self._free_number()}"))
        page.add(ats)
        return page

    def add(self, ats: Sequence[RunAt]) -> None:
        """To the current comparison, or to a new one."""
        pages = self._alive()
        if not pages:
            self.open_compare(ats)
            return
        self._window.editor.open(pages[-1].page_id, focus=False)
        pages[-1].add(list(ats))

    @property
    def current(self) -> Comparing | None:
        pages = self._alive()
        return pages[-1].comparing if pages else None

    def _make_page(self, wanted_id: str) -> Page:
        from rankdeck_app.views.compare.page import ComparePage  # brings the plots

        page = ComparePage(
            wanted_id,
            self._window.theme,
            self._window.clock,
            {
                "open": self._tabs.open,
                "add": self._pick_more,
                "say": self._window.toasts.warn,
                "is_known": lambda path: self._session.runs.info_of(path) is not None,
            },
        )
        page.looked_at.connect(self.recent.note)
        page.actions_changed.connect(self._set_facts)
        page.destroyed.connect(partial(self._forget, page))
        self._pages.insert(0, page)
        return page

    def _open_tabs(self) -> dict[str, list[RunAt]]:
        """The runs of each open comparison; of a tab that came back with a restart and was not looked at yet,
        those that it had."""
        alive = {page.page_id: page.comparing.ats for page in self._alive()}
        tabs = [tab for group in self._window.editor.groups() for tab in group.tabs]
        waiting = [tab for tab in tabs if tab.page is None and tab.page_id.startswith(f"{PAGE_KIND}:")]
        return {tab.page_id: ats_of(tab.state.get("runs")) for tab in waiting} | alive

    def _free_number(self) -> int:
        used = self._open_tabs()
        number = 1
        while f"{PAGE_KIND}:{number}" in used:
            number += 1
        return number

    def _alive(self) -> list[ComparePage]:
        """Those that a tab holds: one that was just closed is gone a little later."""
        shown = self._window.editor.pages()
        return [page for page in self._pages if isValid(page) and page in shown]

    def _forget(self, page: ComparePage, _gone: object = None) -> None:
        if isValid(self) and page in self._pages:
            self._pages = [one for one in self._pages if one is not page]
            self.current_changed.emit(self.current)

    def _active(self) -> ComparePage | None:
        page = self._window.editor.active_page()
        return next((one for one in self._alive() if one is page), None)

    def _follow(self, _page: Page | None) -> None:
        active = self._active()
        if active is not None:
            self._pages.remove(active)
            self._pages.append(active)
        self._set_facts()
        self.current_changed.emit(self.current)

    def _set_facts(self) -> None:
        active = self._active()
        self._window.context.set("activeCompare", active is not None and bool(active.comparing.runs))

    # Choosing runs

    def pick(self) -> None:
        """Compare the runs that are selected in a list; where these are too few or too many, ask which."""
        ats = [RunAt(info.path) for info in self.selected_runs() if info.race is None]
        if LEAST_RUNS <= len(ats) <= MOST_RUNS:
            self.open_compare(ats)
            return
        self._choose(ats[:MOST_RUNS], tr("Choose two or more runs"), self.open_compare)

    def compare_with(self, path: Path) -> None:
        """Runs to put beside this one."""
        question = tr("Compare {run} with", run=self._session.runs.title_of(path))
        self._choose([RunAt(path)], question, self.open_compare)

    def _pick_more(self, page: ComparePage) -> None:
        add = partial(self._add_to, page.page_id)  # the palette keeps it, and must not keep the page
        self._choose(page.comparing.ats, tr("Add runs"), add, is_adding=True)

    def _add_to(self, page_id: str, ats: Sequence[RunAt]) -> None:
        page = self._window.editor.page(page_id)
        for one in self._alive():
            if one is page:
                one.add([at for at in ats if at not in one.comparing.ats])

    def _choose(self, chosen: list[RunAt], placeholder: str, act: Any, *, is_adding: bool = False) -> None:
        """The list of runs, those that are chosen ticked; a choice ticks, and the list stays as it is. The
        first row is what is done with them, or says what is missing."""
        offered = [at for at in self._offered(chosen) if not (is_adding and at in chosen)]

        def show(ticked: list[RunAt], *, goes_on: bool = True) -> None:
            fresh = [at for at in ticked if at not in chosen] if is_adding else ticked
            is_enough = bool(fresh) if is_adding else len(ticked) >= LEAST_RUNS
            names = ", ".join(self._session.runs.title_of(at.path) for at in fresh)
            words, do = _deed(len(fresh), is_adding), partial(act, ticked) if is_enough else None
            first = QuickItem(words, names, do, icon="git-compare", stays=True)
            items = [first, *(self._item(at, ticked, show) for at in offered)]
            self._window.palette_box.pick(items, placeholder, goes_on=goes_on)

        show(list(chosen), goes_on=False)

    def _offered(self, chosen: Sequence[RunAt]) -> list[RunAt]:
        """Runs that were chosen from the start stand first."""
        rest = [RunAt(info.path) for info in self._session.runs.infos if info.race is None]
        return [*chosen, *(at for at in rest if at not in chosen)]

    def _item(self, at: RunAt, ticked: list[RunAt], show: Any) -> QuickItem:
        info = self._session.runs.info_of(at.path)
        facts = () if info is None else (strategy_title(info.strategy), details(info))
        about = " · ".join(filter(None, facts))
        title = self._session.runs.title_of(at.path) + ("" if at.attempt is None else f" @{at.attempt}")
        if at in ticked:
            rest = [one for one in ticked if one != at]
            return QuickItem(title, about, partial(show, rest), tr("chosen"), "check")
        if len(ticked) >= MOST_RUNS:
            full = tr("At most {most} runs can be compared: take one out first.", most=MOST_RUNS)
            return QuickItem(title, about, partial(self._window.toasts.warn, full), "", "circle-slash")
        return QuickItem(title, about, partial(show, [*ticked, at]), "", "circle")

    def _add_to_active(self) -> None:
        page = self._active()
        if page is not None:
            self._pick_more(page)

    # As a page

    def _save_active(self) -> None:
        page = self._active()
        if page is None or len(page.comparing.runs) < LEAST_RUNS:
            return
        file = self._exports.ask_file(tr("Save Comparison"), "comparison.html", tr("Pages (*.html)"))
        if file is not None:
            self.save(page, file)

    def ask_report(self, run: Path) -> None:
        """Ask for a file, and write what a run came to as a page."""
        file = self._exports.ask_file(tr("Save Report"), f"{run.name}.html", tr("Pages (*.html)"))
        if file is not None:
            self.save_report(run, file)

    def _ask_weights(self, run: Path) -> None:
        """Ask for a file, and write the weights of a run."""
        suggested = f"{run.name}.safetensors"
        file = self._exports.ask_file(tr("Export Weights"), suggested, tr("Weights (*.safetensors)"))
        if file is not None:
            self.export_weights(run, file)

    def save(self, page: ComparePage, file: Path) -> None:
        """Write a comparison as a page."""
        ats = page.comparing.ats
        base = str(ats[page.comparing.baseline])
        options = ["--baseline", base, "--by", page.loss.by, "--html", str(file), "--json"]
        words = tr(
            "{file} holds the comparison of {n} runs.",
            "{file} holds the comparison of {n} run.",
            len(ats),
            file=file,
        )
        self._write(file, ["compare", *map(str, ats), *options], lambda _out: words)

    def save_report(self, run: Path, file: Path) -> None:
        """Write what a run came to as a page; nothing is planned for it whose code nobody trusts."""
        words = tr("{file} holds the report of {run}.", file=file, run=run.name)
        command = ["report", str(run), "--html", str(file), "--json"]

        def write(needs_trust: bool) -> None:
            self._write(file, [*command, "--no-plan" if needs_trust else "--trust"], lambda _out: words)

        found = self._tabs.open_runs.of(run)
        if found is None or found.config is None:
            write(True)
        else:
            self._session.planner.look_at_trust(found.config, write, run=run)

    def export_weights(self, run: Path, file: Path) -> None:
        """Write a run's weights, of its newest checkpoint where it was stopped, as safetensors: that needs
        the run's model, and so its code."""
        from rankdeck.run.export import is_behind

        def told(out: str) -> str:
            step = json.loads(out)["step"]
            if step is None:
                return tr("{file} holds the weights of {run}.", file=file, run=run.name)
            return tr(
                "{file} holds the weights of {run} after step {step}, its newest checkpoint.",
                file=file,
                run=run.name,
                step=step,
            )

        def write(*trust: str) -> None:
            self._write(file, ["export", str(run), str(file), "--to", "safetensors", *trust, "--json"], told)

        def ask(is_behind: bool) -> None:
            if is_behind:
                self._launching.when_run_trusted(run, partial(write, "--trust"))
            else:
                write()

        self._session.disk.do(lambda: is_behind(RunDir(run)), ask)

    def _write(self, file: Path, command: Sequence[str], told: Callable[[str], str]) -> None:
        """Let the engine write a file; a toast says how it went, `told` what it wrote by its answer."""
        call = self._session.engine.ask(command, self._session.workspace.folder)
        failure = tr("The file could not be written.")
        self._tabs.report_answer(call, failure, lambda out: self._exports.tell(file, told(out)))

    def close(self) -> None:
        """The window goes."""
        for page in filter(isValid, self._pages):
            page.comparing.close()
        self._pages = []
        self.recent.close()


def _deed(count: int, is_adding: bool) -> str:
    """What is done with so many runs, or what is missing."""
    if is_adding:
        return tr("Add {n} runs", "Add {n} run", count) if count else tr("Add: choose at least one run")
    if count < LEAST_RUNS:
        return tr("Compare: choose at least two runs")
    return tr("Compare {n} runs", "Compare {n} run", count)

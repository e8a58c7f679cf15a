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
from rankdeck.compare.run_ref import MAX_RUNS, MIN_RUNS, RunRef, parse_run_refs
from rankdeck.run.row import RunInfo
from rankdeck.run_dir import RunDir
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.chart_commands import Exports
from rankdeck_app.controllers.launcher import Launcher
from rankdeck_app.controllers.run_tabs import RunTabs
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import tr
from rankdeck_app.shell.floating_list import QuickPickItem
from rankdeck_app.shell.page import Page
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.state_file import RecentComparisons
from rankdeck_app.widgets.run_list import details_text, strategy_title

if TYPE_CHECKING:
    from rankdeck_app.state.run_comparison import RunComparison
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
        launching: Launcher,
    ) -> None:
        super().__init__(window)
        self._launcher = launching
        self._window, self._session, self._tabs, self._exports = window, session, tabs, exports
        self.recent = RecentComparisons(
            window.services.state_folder / "comparisons.json", self, io_thread=window.services.io_thread
        )
        self.selected_runs: Callable[[], Sequence[RunInfo]] = tuple
        """Those of the list that is in use."""
        self._pages: list[ComparePage] = []
        """The last one that was active comes last."""
        window.editor.register_page_kind(PAGE_KIND, self._make_page)
        window.editor.active_page_changed.connect(self._on_page_activated)

    def commands(self) -> list[Command]:
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
                of(self._ask_weights_file),
                when="activeRunAgain && !activeRunScript",
            ),
            of_run("run.report", phrase("Run: Save a Report…"), of(self.ask_report_file), when="activeRun"),
        ]

    # Opening

    def open_comparison(self, runs: Iterable[Path | RunRef]) -> ComparePage | None:
        """Show these runs side by side, the first one the baseline; in the tab that shows them already, if
        there is one."""
        ats = list(dict.fromkeys(run if isinstance(run, RunRef) else RunRef(run.absolute()) for run in runs))
        if not ats:
            return None
        for page_id, known in self._open_tabs().items():
            if known == ats:
                return cast("ComparePage", self._window.editor.open(page_id))
        page = cast("ComparePage", self._window.editor.open(f"{PAGE_KIND}:{self._free_number()}"))
        page.add(ats)
        return page

    def add(self, ats: Sequence[RunRef]) -> None:
        """To the current comparison, or to a new one."""
        pages = self._open_pages()
        if not pages:
            self.open_comparison(ats)
            return
        self._window.editor.open(pages[-1].page_id, focus=False)
        pages[-1].add(list(ats))

    @property
    def current(self) -> RunComparison | None:
        pages = self._open_pages()
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
                "is_known": lambda path: self._session.runs.find_info(path) is not None,
            },
        )
        page.comparison_changed.connect(self.recent.add)
        page.actions_changed.connect(self._update_context)
        page.destroyed.connect(partial(self._remove_page, page))
        self._pages.insert(0, page)
        return page

    def _open_tabs(self) -> dict[str, list[RunRef]]:
        """The runs of each open comparison; of a tab that came back with a restart and was not looked at yet,
        those that it had."""
        alive = {page.page_id: page.comparing.refs for page in self._open_pages()}
        tabs = [tab for group in self._window.editor.groups() for tab in group.tabs]
        waiting = [tab for tab in tabs if tab.page is None and tab.page_id.startswith(f"{PAGE_KIND}:")]
        return {tab.page_id: parse_run_refs(tab.state.get("runs")) for tab in waiting} | alive

    def _free_number(self) -> int:
        used = self._open_tabs()
        number = 1
        while f"{PAGE_KIND}:{number}" in used:
            number += 1
        return number

    def _open_pages(self) -> list[ComparePage]:
        """Those that a tab holds: one that was just closed is gone a little later."""
        shown = self._window.editor.pages()
        return [page for page in self._pages if isValid(page) and page in shown]

    def _remove_page(self, page: ComparePage, _gone: object = None) -> None:
        if isValid(self) and page in self._pages:
            self._pages = [one for one in self._pages if one is not page]
            self.current_changed.emit(self.current)

    def _active_page(self) -> ComparePage | None:
        page = self._window.editor.active_page()
        return next((one for one in self._open_pages() if one is page), None)

    def _on_page_activated(self, _page: Page | None) -> None:
        active = self._active_page()
        if active is not None:
            self._pages.remove(active)
            self._pages.append(active)
        self._update_context()
        self.current_changed.emit(self.current)

    def _update_context(self) -> None:
        active = self._active_page()
        self._window.context.set("activeCompare", active is not None and bool(active.comparing.runs))

    # Choosing runs

    def pick(self) -> None:
        """Compare the runs that are selected in a list; where these are too few or too many, ask which."""
        ats = [RunRef(info.path) for info in self.selected_runs() if info.race is None]
        if MIN_RUNS <= len(ats) <= MAX_RUNS:
            self.open_comparison(ats)
            return
        self._pick_runs(ats[:MAX_RUNS], tr("Choose two or more runs"), self.open_comparison)

    def compare_with(self, path: Path) -> None:
        """Runs to put beside this one."""
        question = tr("Compare {run} with", run=self._session.runs.get_title(path))
        self._pick_runs([RunRef(path)], question, self.open_comparison)

    def _pick_more(self, page: ComparePage) -> None:
        add = partial(self._add_to_page, page.page_id)  # the palette keeps it, and must not keep the page
        self._pick_runs(page.comparing.refs, tr("Add runs"), add, is_adding=True)

    def _add_to_page(self, page_id: str, ats: Sequence[RunRef]) -> None:
        page = self._window.editor.page(page_id)
        for one in self._open_pages():
            if one is page:
                one.add([at for at in ats if at not in one.comparing.refs])

    def _pick_runs(
        self, chosen: list[RunRef], placeholder: str, act: Any, *, is_adding: bool = False
    ) -> None:
        """The list of runs, those that are chosen ticked; a choice ticks, and the list stays as it is. The
        first row is what is done with them, or says what is missing."""
        offered = [at for at in self._list_candidates(chosen) if not (is_adding and at in chosen)]

        def show(ticked: list[RunRef], *, goes_on: bool = True) -> None:
            fresh = [at for at in ticked if at not in chosen] if is_adding else ticked
            is_enough = bool(fresh) if is_adding else len(ticked) >= MIN_RUNS
            names = ", ".join(self._session.runs.get_title(at.path) for at in fresh)
            words, do = _action_text(len(fresh), is_adding), partial(act, ticked) if is_enough else None
            first = QuickPickItem(words, names, do, icon="git-compare", always_show=True)
            items = [first, *(self._item(at, ticked, show) for at in offered)]
            self._window.command_palette.pick(items, placeholder, keep_input=goes_on)

        show(list(chosen), goes_on=False)

    def _list_candidates(self, chosen: Sequence[RunRef]) -> list[RunRef]:
        """Runs that were chosen from the start stand first."""
        rest = [RunRef(info.path) for info in self._session.runs.infos if info.race is None]
        return [*chosen, *(at for at in rest if at not in chosen)]

    def _item(self, at: RunRef, ticked: list[RunRef], show: Any) -> QuickPickItem:
        info = self._session.runs.find_info(at.path)
        facts = () if info is None else (strategy_title(info.strategy), details_text(info))
        about = " · ".join(filter(None, facts))
        title = self._session.runs.get_title(at.path) + ("" if at.attempt is None else f" @{at.attempt}")
        if at in ticked:
            rest = [one for one in ticked if one != at]
            return QuickPickItem(title, about, partial(show, rest), tr("chosen"), "check")
        if len(ticked) >= MAX_RUNS:
            full = tr("At most {most} runs can be compared: take one out first.", most=MAX_RUNS)
            return QuickPickItem(title, about, partial(self._window.toasts.warn, full), "", "circle-slash")
        return QuickPickItem(title, about, partial(show, [*ticked, at]), "", "circle")

    def _add_to_active(self) -> None:
        page = self._active_page()
        if page is not None:
            self._pick_more(page)

    # As a page

    def _save_active(self) -> None:
        page = self._active_page()
        if page is None or len(page.comparing.runs) < MIN_RUNS:
            return
        file = self._exports.ask_file(tr("Save Comparison"), "comparison.html", tr("Pages (*.html)"))
        if file is not None:
            self.save(page, file)

    def ask_report_file(self, run: Path) -> None:
        """Ask for a file, and write what a run came to as a page."""
        file = self._exports.ask_file(tr("Save Report"), f"{run.name}.html", tr("Pages (*.html)"))
        if file is not None:
            self.save_report(run, file)

    def _ask_weights_file(self, run: Path) -> None:
        """Ask for a file, and write the weights of a run."""
        suggested = f"{run.name}.safetensors"
        file = self._exports.ask_file(tr("Export Weights"), suggested, tr("Weights (*.safetensors)"))
        if file is not None:
            self.export_weights(run, file)

    def save(self, page: ComparePage, file: Path) -> None:
        """Write a comparison as a page."""
        ats = page.comparing.refs
        base = str(ats[page.comparing.baseline])
        options = ["--baseline", base, "--by", page.loss_plot.axis, "--html", str(file), "--json"]
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

        found = self._tabs.open_runs.get(run)
        if found is None or found.config is None:
            write(True)
        else:
            self._session.planner.check_trust(found.config, write, run=run)

    def export_weights(self, run: Path, file: Path) -> None:
        """Write a run's weights, of its newest checkpoint where it was stopped, as safetensors: that needs
        the run's model, and so its code."""
        from rankdeck.run.export import are_weights_outdated

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
                self._launcher.when_run_trusted(run, partial(write, "--trust"))
            else:
                write()

        self._session.io_thread.submit(lambda: are_weights_outdated(RunDir(run)), ask)

    def _write(self, file: Path, command: Sequence[str], told: Callable[[str], str]) -> None:
        """Let the engine write a file; a toast says how it went, `told` what it wrote by its answer."""
        call = self._session.engine.call(command, self._session.workspace.folder)
        failure = tr("The file could not be written.")
        self._tabs.report_answer(call, failure, lambda out: self._exports.show_saved_toast(file, told(out)))

    def close(self) -> None:
        """The window goes."""
        for page in filter(isValid, self._pages):
            page.comparing.close()
        self._pages = []
        self.recent.close()


def _action_text(count: int, is_adding: bool) -> str:
    """What is done with so many runs, or what is missing."""
    if is_adding:
        return tr("Add {n} runs", "Add {n} run", count) if count else tr("Add: choose at least one run")
    if count < MIN_RUNS:
        return tr("Compare: choose at least two runs")
    return tr("Compare {n} runs", "Compare {n} run", count)

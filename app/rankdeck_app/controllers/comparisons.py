"""Opens and exports comparisons, lets the user pick runs for them, and exports a run's report and weights.

Every comparison is a tab, with an id such as "compare:1", and keeps its runs across restarts. The current
comparison is that of the active tab, or else that of the most recently active comparison tab; the side bar
adds runs to the current comparison.
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
    """The comparison tabs. `current_changed` carries the current RunComparison or None."""

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
        """Callback that returns the runs selected in the focused run list."""
        self._pages: list[ComparePage] = []
        """Comparison pages in the order of activation; the most recently active page is last."""
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
            row("compare.save", phrase("Compare: Save as HTML Page…"), self._save_active),
            of_run("run.compare", phrase("Run: Compare With…"), of(self.compare_with), when="activeRun"),
            of_run(
                "run.weights",
                phrase("Run: Export Weights…"),
                of(self._ask_weights_file),
                when="activeRunAgain && !activeRunScript",
            ),
            of_run("run.report", phrase("Run: Save Report…"), of(self.ask_report_file), when="activeRun"),
        ]

    # Opening

    def open_comparison(self, runs: Iterable[Path | RunRef]) -> ComparePage | None:
        """Compare runs, with the first run as the baseline. If a tab already compares the same runs, show
        that tab."""
        ats = list(dict.fromkeys(run if isinstance(run, RunRef) else RunRef(run.absolute()) for run in runs))
        if not ats:
            return None
        for page_id, refs in self._open_tabs().items():
            if refs == ats:
                return cast("ComparePage", self._window.editor.open(page_id))
        page = cast("ComparePage", self._window.editor.open(f"{PAGE_KIND}:{self._free_number()}"))
        page.add(ats)
        return page

    def add(self, ats: Sequence[RunRef]) -> None:
        """Add runs to the current comparison, or to a new one if there is none."""
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
        from rankdeck_app.views.compare.page import ComparePage  # imports pyqtgraph

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
        # At the front: a page becomes the current one only when it is activated.
        self._pages.insert(0, page)
        return page

    def _open_tabs(self) -> dict[str, list[RunRef]]:
        """Return the runs of each open comparison, including restored tabs whose page is not built yet."""
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
        """Return the pages that are still in a tab, excluding closed pages that are not destroyed yet."""
        open_pages = self._window.editor.pages()
        return [page for page in self._pages if isValid(page) and page in open_pages]

    def _remove_page(self, page: ComparePage, _object: object = None) -> None:
        # When the window closes, a page may be destroyed after this object.
        if isValid(self) and page in self._pages:
            self._pages = [other for other in self._pages if other is not page]
            self.current_changed.emit(self.current)

    def _active_page(self) -> ComparePage | None:
        page = self._window.editor.active_page()
        return next((candidate for candidate in self._open_pages() if candidate is page), None)

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
        """Compare the runs selected in a list; if too few or too many are selected, ask which runs to
        compare."""
        ats = [RunRef(info.path) for info in self.selected_runs() if info.race is None]
        if MIN_RUNS <= len(ats) <= MAX_RUNS:
            self.open_comparison(ats)
            return
        self._pick_runs(ats[:MAX_RUNS], tr("Choose two or more runs"), self.open_comparison)

    def compare_with(self, path: Path) -> None:
        """Ask which runs to compare with the run at `path`."""
        question = tr("Compare {run} with", run=self._session.runs.get_title(path))
        self._pick_runs([RunRef(path)], question, self.open_comparison)

    def _pick_more(self, page: ComparePage) -> None:
        add = partial(self._add_to_page, page.page_id)  # the palette stores it: it must not refer to the page
        self._pick_runs(page.comparing.refs, tr("Add runs"), add, is_adding=True)

    def _add_to_page(self, page_id: str, ats: Sequence[RunRef]) -> None:
        page = self._window.editor.page(page_id)
        for open_page in self._open_pages():
            if open_page is page:
                open_page.add([at for at in ats if at not in open_page.comparing.refs])

    def _pick_runs(
        self, chosen: list[RunRef], placeholder: str, act: Any, *, is_adding: bool = False
    ) -> None:
        """Show a list of runs that stays open; choosing a run toggles its check mark.

        The runs `chosen` are checked initially or, if `is_adding` is True, left out of the list. The first
        row calls `act` with the checked runs, or asks for more runs if too few are checked.
        """
        offered = [at for at in self._list_candidates(chosen) if not (is_adding and at in chosen)]

        def show(ticked: list[RunRef], *, goes_on: bool = True) -> None:
            fresh = [at for at in ticked if at not in chosen] if is_adding else ticked
            is_enough = bool(fresh) if is_adding else len(ticked) >= MIN_RUNS
            names = ", ".join(self._session.runs.get_title(at.path) for at in fresh)
            label, do = _action_text(len(fresh), is_adding), partial(act, ticked) if is_enough else None
            # always_show keeps the action in the list, whatever is typed.
            first = QuickPickItem(label, names, do, icon="git-compare", always_show=True)
            items = [first, *(self._item(at, ticked, show) for at in offered)]
            self._window.command_palette.pick(items, placeholder, keep_input=goes_on)

        show(list(chosen), goes_on=False)

    def _list_candidates(self, chosen: Sequence[RunRef]) -> list[RunRef]:
        """Return all runs that can be compared, the chosen runs first."""
        rest = [RunRef(info.path) for info in self._session.runs.infos if info.race is None]
        return [*chosen, *(at for at in rest if at not in chosen)]

    def _item(self, at: RunRef, ticked: list[RunRef], show: Any) -> QuickPickItem:
        info = self._session.runs.find_info(at.path)
        facts = () if info is None else (strategy_title(info.strategy), details_text(info))
        about = " · ".join(filter(None, facts))
        title = self._session.runs.get_title(at.path) + ("" if at.attempt is None else f" @{at.attempt}")
        if at in ticked:
            rest = [ref for ref in ticked if ref != at]
            return QuickPickItem(title, about, partial(show, rest), tr("chosen"), "check")
        if len(ticked) >= MAX_RUNS:
            full = tr(
                "You can compare at most {most} runs. Remove a run from the comparison first.", most=MAX_RUNS
            )
            return QuickPickItem(title, about, partial(self._window.toasts.warn, full), "", "circle-slash")
        return QuickPickItem(title, about, partial(show, [*ticked, at]), "", "circle")

    def _add_to_active(self) -> None:
        page = self._active_page()
        if page is not None:
            self._pick_more(page)

    # Exporting

    def _save_active(self) -> None:
        page = self._active_page()
        if page is None or len(page.comparing.runs) < MIN_RUNS:
            return
        file = self._exports.ask_file(tr("Save Comparison"), "comparison.html", tr("HTML pages (*.html)"))
        if file is not None:
            self.save(page, file)

    def ask_report_file(self, run: Path) -> None:
        """Ask for a file and write the run's report as an HTML page."""
        file = self._exports.ask_file(tr("Save Report"), f"{run.name}.html", tr("HTML pages (*.html)"))
        if file is not None:
            self.save_report(run, file)

    def _ask_weights_file(self, run: Path) -> None:
        """Ask for a file and export the run's weights."""
        suggested = f"{run.name}.safetensors"
        file = self._exports.ask_file(tr("Export Weights"), suggested, tr("Weights (*.safetensors)"))
        if file is not None:
            self.export_weights(run, file)

    def save(self, page: ComparePage, file: Path) -> None:
        """Write a comparison as an HTML page."""
        ats = page.comparing.refs
        base = str(ats[page.comparing.baseline])
        options = ["--baseline", base, "--by", page.loss_plot.axis, "--html", str(file), "--json"]
        message = tr(
            "Saved the comparison of {n} runs to {file}.",
            "Saved the comparison of {n} run to {file}.",
            len(ats),
            file=file,
        )
        self._write(file, ["compare", *map(str, ats), *options], lambda _out: message)

    def save_report(self, run: Path, file: Path) -> None:
        """Write a run's report as an HTML page. If the run's code is not trusted, leave out the plan."""
        message = tr("Saved the report of {run} to {file}.", file=file, run=run.name)
        command = ["report", str(run), "--html", str(file), "--json"]

        def write(needs_trust: bool) -> None:
            self._write(file, [*command, "--no-plan" if needs_trust else "--trust"], lambda _out: message)

        open_run = self._tabs.open_runs.get(run)
        if open_run is None or open_run.config is None:
            # A run that is not open has no known configuration, so its code is treated as untrusted.
            write(True)
        else:
            self._session.planner.check_trust(open_run.config, write, run=run)

    def export_weights(self, run: Path, file: Path) -> None:
        """Write the run's weights as safetensors; for a stopped run, those of its newest checkpoint.
        Exporting executes the run's code, because it needs the run's model."""
        from rankdeck.run.export import are_weights_outdated

        def format_message(out: str) -> str:
            step = json.loads(out)["step"]
            if step is None:
                return tr("Exported the weights of {run} to {file}.", file=file, run=run.name)
            return tr(
                "Exported the weights of {run} from its latest checkpoint (step {step}) to {file}.",
                file=file,
                run=run.name,
                step=step,
            )

        def write(*trust: str) -> None:
            self._write(
                file, ["export", str(run), str(file), "--to", "safetensors", *trust, "--json"], format_message
            )

        def on_checked(is_behind: bool) -> None:
            if is_behind:
                self._launcher.when_run_trusted(run, partial(write, "--trust"))
            else:
                write()

        self._session.io_thread.submit(lambda: are_weights_outdated(RunDir(run)), on_checked)

    def _write(self, file: Path, command: Sequence[str], format_message: Callable[[str], str]) -> None:
        """Make the engine write a file, then show a toast with the result. `format_message` turns the
        engine's output into the toast's message."""
        call = self._session.engine.call(command, self._session.workspace.folder)
        failure = tr("The file could not be written.")
        self._tabs.report_answer(
            call, failure, lambda out: self._exports.show_saved_toast(file, format_message(out))
        )

    def close(self) -> None:
        """Close all comparisons; called when the window is closing."""
        for page in filter(isValid, self._pages):
            page.comparing.close()
        self._pages = []
        self.recent.close()


def _action_text(count: int, is_adding: bool) -> str:
    """Return the label of the row that adds or compares `count` runs; if these are too few, the label asks
    for more."""
    if is_adding:
        return tr("Add {n} runs", "Add {n} run", count) if count else tr("Add: choose at least one run")
    if count < MIN_RUNS:
        return tr("Compare: choose at least two runs")
    return tr("Compare {n} runs", "Compare {n} run", count)

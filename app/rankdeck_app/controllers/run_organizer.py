"""Renames, tags, annotates, archives, deletes and restores runs.

The io thread does the work (state/run_store.py); this module prompts the user and shows the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QObject

from rankdeck.run.row import RunInfo
from rankdeck.run_dir import Labels
from rankdeck_app.controllers.run_tabs import PAGE_KIND, RACE_KIND
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import tr
from rankdeck_app.shell.toasts import OneTimeAction
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.run_store import RunStore, TrashedRun
from rankdeck_app.views.runs_page import NoteDialog


class RunOrganizer(QObject):
    def __init__(self, window: MainWindow, session: Session) -> None:
        super().__init__(window)
        self._window, self._session = window, session
        self.label_store = RunStore(session.io_thread, self)
        self.note_dialog: NoteDialog | None = None
        self.label_store.relabelled.connect(session.runs.update_labels)
        self.label_store.failed.connect(window.toasts.error)
        self.label_store.trashed.connect(self._show_trashed_toast)
        self.label_store.restored.connect(lambda _paths: session.runs.rescan())

    # Names, tags and notes

    def rename(self, path: Path, name: str) -> None:
        """Rename a run; "" restores its original name."""
        self.label_store.change_labels([path], lambda labels: labels.with_changes(name=name))

    def ask_name(self, info: RunInfo) -> None:
        hint = tr("Name of the run. Leave empty to restore the original name.")
        self._window.command_palette.prompt(hint, lambda name: self.rename(info.path, name), info.title)

    def ask_tags(self, infos: Sequence[RunInfo]) -> None:
        """Let the user edit the tags that all these runs share; the runs keep their other tags."""
        common = [tag for tag in infos[0].labels.tags if all(tag in info.labels.tags for info in infos)]

        def answered(text: str) -> None:
            new_tags = [tag for tag in (item.strip().removeprefix("#") for item in text.split(",")) if tag]
            removed_tags = set(common) - set(new_tags)

            def retag(labels: Labels) -> Labels:
                return labels.with_changes(
                    tags=(*(tag for tag in labels.tags if tag not in removed_tags), *new_tags)
                )

            self.label_store.change_labels([info.path for info in infos], retag)

        question = (
            tr("Tags of {run}, separated by commas", run=infos[0].title)
            if len(infos) == 1
            else tr(
                "Tags of {n} runs, separated by commas", "Tags of {n} run, separated by commas", len(infos)
            )
        )
        self._window.command_palette.prompt(question, answered, ", ".join(common))

    def ask_note(self, info: RunInfo) -> None:
        sheet = NoteDialog(info.title, info.labels.note, self._window)
        self.note_dialog = sheet

        def answered(result: int) -> None:
            self.note_dialog = None
            sheet.deleteLater()
            if result:
                text = sheet.text
                self.label_store.change_labels([info.path], lambda labels: labels.with_changes(note=text))

        sheet.finished.connect(answered)
        sheet.open()

    def archive(self, infos: Sequence[RunInfo], *, is_archived: bool = True) -> None:
        """Archive or unarchive runs."""
        paths = [info.path for info in infos]
        self.label_store.change_labels(paths, lambda labels: labels.with_changes(is_archived=is_archived))
        if is_archived:
            undo = (tr("Undo"), OneTimeAction(lambda: self.archive(infos, is_archived=False)))
            message = (
                tr("{run} is archived.", run=infos[0].title)
                if len(infos) == 1
                else tr("{n} runs are archived.", "{n} run is archived.", len(infos))
            )
            self._window.toasts.show(message, actions=[undo], key=f"archived {paths[0]}")

    # Deleting

    def trash(self, infos: Sequence[RunInfo]) -> None:
        self.label_store.trash([info.path for info in infos])

    def _show_trashed_toast(self, trashed: list[TrashedRun]) -> None:
        titles = [self._session.runs.get_title(run.path) for run in trashed]
        trashed_paths, editor = {run.path for run in trashed}, self._window.editor
        for page_id in [*(page.page_id for page in editor.pages()), *editor.unbuilt_page_ids()]:
            kind, _, path = page_id.partition(":")
            # The parents count too: a deleted race takes the runs of its entries with it.
            if kind in (PAGE_KIND, RACE_KIND) and trashed_paths & {Path(path), *Path(path).parents}:
                editor.close_page(page_id)
        self._session.runs.rescan()
        message = (
            tr("{run} was moved to the trash.", run=titles[0])
            if len(titles) == 1
            else tr("{n} runs were moved to the trash.", "{n} run was moved to the trash.", len(titles))
        )
        undo = (tr("Undo"), OneTimeAction(lambda: self.label_store.restore(trashed)))
        self._window.toasts.show(message, actions=[undo], key=f"trashed {trashed[0].trash_path}")

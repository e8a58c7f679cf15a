"""`rankdeck label`: what a person says of a run or a race. Nothing of it itself changes."""

from __future__ import annotations

from typing import Annotated

import typer

from rankdeck.base.errors import ConfigError
from rankdeck.base.phrases import phrase
from rankdeck.cli import console
from rankdeck.cli.options import AsJson, RunName, find_race, find_run


def label(
    name: RunName,
    title: Annotated[
        str | None, typer.Option("--name", metavar="TEXT", help='Call it so; "" gives back its first name.')
    ] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="TEXT", help="Add a tag.")] = None,
    untag: Annotated[
        list[str] | None, typer.Option("--untag", metavar="TEXT", help="Take a tag off.")
    ] = None,
    note: Annotated[
        str | None, typer.Option("--note", metavar="TEXT", help='Replace the note; "" removes it.')
    ] = None,
    archive: Annotated[
        bool | None, typer.Option("--archive/--unarchive", help="Put it away: lists leave it out.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Rename, tag, annotate or archive a run or a race; its folder stays where it is."""
    from rankdeck.run.race_row import race_info
    from rankdeck.rundir import RunDir, enter_in_index, read_labels, write_labels

    race = find_race(name)
    run = find_run(name) if race is None else RunDir(race.path)
    before = read_labels(run.path)
    if not all(one.strip() for one in tag or ()):
        raise ConfigError(phrase("A tag needs a word."), advice=phrase("As in --tag baseline."))
    tags = [one for one in (*before.tags, *(tag or ())) if one not in (untag or ())]
    after = before.changed(
        name=before.name if title is None else title,
        tags=tuple(tags),
        note=before.note if note is None else note,
        is_archived=before.is_archived if archive is None else archive,
    )
    if after != before:
        write_labels(run.path, after)
        enter_in_index(run)  # whoever watches the index looks again
    called = run.title if race is None else race_info(race).title
    if as_json:
        told = {"title": called, "tags": after.tags, "note": after.note, "archived": after.is_archived}
        console.as_json({"run": run.name, **told})
        return 0
    tagged = "".join(f"  #{one}" for one in after.tags)
    put_away = "  (archived)" if after.is_archived else ""
    console.out().print(f"{called}{tagged}{put_away}", soft_wrap=True)
    if after.note:
        console.out().print(after.note, soft_wrap=True)
    return 0

"""The dashboard of a configured run: what its directory says, drawn, thirty times a second at most.

Read run_tab.py first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from PySide6.QtWidgets import QWidget

from rankdeck.base.phrases import marked
from rankdeck.diagnose.fixes import fix_name, is_out_of_memory
from rankdeck.run.batch import Changed
from rankdeck_app.language import spoken, tr
from rankdeck_app.shell.page import PageAction
from rankdeck_app.state.run_answers import RunAnswers
from rankdeck_app.theme import Theme
from rankdeck_app.views.dashboard import run_figures, run_rows, script_figures
from rankdeck_app.views.dashboard.logged_card import LoggedCard
from rankdeck_app.views.dashboard.run_tab import LR_WORDS, NORM_WORDS, PACE_WORDS, Curves, RunTab
from rankdeck_app.widgets.anatomy import StepAnatomyChart
from rankdeck_app.widgets.band_chart import BandChart
from rankdeck_app.widgets.card import ChartCard
from rankdeck_app.widgets.card_files import ManyRows, Row
from rankdeck_app.widgets.card_layout import ArrangedGrid
from rankdeck_app.widgets.curve_plot import LOSS_WORDS, CurvePlot
from rankdeck_app.widgets.facts_line import FactsLine, verified_fact
from rankdeck_app.widgets.layouts import Part
from rankdeck_app.widgets.stat_strip import Stat

RunRows = Callable[[RunAnswers], Iterable[Row | ManyRows]]


class RunPage(RunTab):
    """A tab that shows a run of a configuration."""

    def _make_cards(self, theme: Theme) -> ArrangedGrid:
        """Every chart in its card, and the cards in their grid."""
        self._anatomy = StepAnatomyChart(theme)
        make = partial(partial, self._make_curve, theme)
        bodies: dict[str, tuple[str, QWidget | Callable[[], QWidget], RunRows]] = {
            "bars": (tr("VRAM per device"), self._bars, run_rows.bars_rows),
            "anatomy": (tr("Step anatomy"), self._anatomy, run_rows.anatomy_rows),
            "heat": (tr("Utilisation"), self._heat, run_rows.heat_rows),
            "band": (
                tr("VRAM over time"),
                lambda: BandChart(theme, tr("Memory over time")),
                run_rows.band_rows,
            ),
            "loss": (tr("Training loss"), make("loss"), run_rows.loss_rows),
            "rate": (
                tr("Throughput"),
                make("rate", words=PACE_WORDS, from_zero=True, digits=0),
                run_rows.rate_rows,
            ),
            "lr": (tr("Learning rate"), make("lr", words=LR_WORDS, digits=5), run_rows.lr_rows),
            "norm": (tr("Gradient norm"), make("norm", words=NORM_WORDS, digits=5), run_rows.norm_rows),
        }
        for name, (title, body, rows) in bodies.items():
            self.cards[name] = ChartCard(title, theme, body, partial(self._rows, rows))
        self.cards["metrics"] = self._logged = LoggedCard(
            tr("Logged by the model"), theme, lambda: self.shown, self.cards["loss"], self._show_loss
        )
        return ArrangedGrid(self.cards, devices=("bars", "anatomy", "heat"), optional=("lr", "norm"))

    def _rows(self, rows: RunRows) -> Iterable[Row | ManyRows]:
        return rows(self.shown)

    def _curves(self, run: RunAnswers) -> Mapping[str, Curves]:
        lrs, norms = run.fold.lrs, run.fold.grad_norms
        return {
            "loss": (run.losses, run.loss_ema, run.held_out),
            "rate": (run.rates, run.rate_ema, None),
            "lr": (lrs, lrs, None),
            "norm": (norms, norms, None),
        }

    def _facts_parts(self, theme: Theme) -> Sequence[Part]:
        self._facts = FactsLine(theme, tr("Whether it computes what one device does"))
        self._facts.hide()
        return (self._facts,)

    @property
    def _busy_words(self) -> str:
        return tr("thread busy") if self.shown.is_rehearsal else tr("% SM")

    def _stats(self) -> tuple[Stat, ...]:
        return run_figures.stats(self.shown)

    def _headline(self) -> tuple[str, str, str] | None:
        return run_figures.headline(self.shown)

    def _live_actions(self) -> list[PageAction]:
        save = PageAction("save", tr("Save a checkpoint now"), "run.checkpoint")
        return [save, PageAction("debug-stop", tr("Stop this run"), "run.stop")]

    def _ended_actions(self) -> list[PageAction]:
        resume = PageAction("debug-continue", tr("Resume"), "run.resume")
        again = PageAction("debug-rerun", tr("Run Again"), "run.again")
        compare = PageAction("git-compare", tr("Compare"), "run.compare")
        actions = [resume, again, compare] if self.run.is_resumable else [again, compare]
        # A banner has room for three beside its words.
        if any(map(is_out_of_memory, self.run.problems)):
            return [PageAction("lightbulb", tr("Why Out of Memory"), "run.why"), *actions[:-1]]
        if changes := self.run.fix_changes:
            use = tr("Use {fix}", fix=spoken(fix_name(changes)))
            return [PageAction("lightbulb", use, "run.cure"), *actions[:-1]]
        return actions

    def _refresh_cards(self, pending: Changed) -> None:
        run = self.shown
        if pending & (Changed.STATE | Changed.EVALUATION):
            self._show_devices()
        if pending & (Changed.MEMORY | Changed.STATE | Changed.READINGS):
            self._show_memory()
        if pending & (Changed.READINGS | Changed.STATE):
            self._show_heat()
        if pending & (Changed.ANATOMY | Changed.STATE):
            self._anatomy.set_figure(run_figures.anatomy(run))
            self.cards["anatomy"].set_subtitle(*run_figures.anatomy_subtitle(run))
        if pending & (Changed.STEPS | Changed.STATE | Changed.EVALUATION):
            for name, curves in self._curves(run.charted).items():
                if isinstance(plot := self._plot(name), CurvePlot):
                    if name != "loss" or not self._logged.is_large:
                        plot.set_curves(*curves)
                    plot.set_last_step(run.steps)
                    plot.request_draw()
            if isinstance(norm := self._plot("norm"), CurvePlot):
                norm.awaited = tr("no gradient was clipped: train.clip_norm tells their norms")
        if self._logged.take(pending) or pending & Changed.STATE:
            self.grid.show_only({name for name in self.cards if name != "metrics" or self._logged.is_filled})

    def _show_loss(self) -> None:
        """Also after a curve that the model logs stood in its place."""
        run, card = self.shown, self.cards["loss"]
        held_out = tr("raw and EMA, ◆ held-out"), tr("EMA, ◆ held-out"), tr("◆ held-out")
        card.set_subtitle(*(held_out if len(run.held_out) else (tr("raw and EMA"),)))
        if isinstance(plot := card.made_body, CurvePlot):
            plot.set_curves(*self._curves(run.charted)["loss"], digits=4, words=LOSS_WORDS)

    def _show_devices(self) -> None:
        """What the figures are, room for as many devices as there are, and what was verified."""
        run = self.shown
        verified = run.fold.verified
        self._facts.set_figure(() if verified is None else (verified_fact(verified),))
        self._facts.setVisible(verified is not None)
        of_memory, of_others = run_figures.sources(run)
        for name, card in self.cards.items():
            card.set_source(*(of_memory if name in ("bars", "band") else of_others))
        if not self._logged.is_large:
            self._show_loss()
        self.cards["rate"].set_subtitle(*run_figures.rate_subtitle(run))


# The dashboard of a person's own script: its loss, what it logs itself, its pace, and what its devices
# hold.
#
# Nobody knows beforehand what a script will tell: cards come when there is something on them. There is no
# plan, no step anatomy and no end in sight.

_LOSS_WORDS = (marked("sampled"), marked("EMA"), "")


class ScriptPage(RunTab):
    """A tab that shows a run of a script."""

    def _make_cards(self, theme: Theme) -> ArrangedGrid:
        make = partial(partial, self._make_curve, theme)
        share = make("wait", words=("%", "", ""), from_zero=True, digits=1, scale=100.0)
        bodies: dict[str, tuple[str, QWidget | Callable[[], QWidget]]] = {
            "loss": (tr("Training loss"), make("loss", words=_LOSS_WORDS)),
            "bars": (tr("Memory per device"), self._bars),
            "band": (tr("Memory over time"), lambda: BandChart(theme, tr("Memory over time"))),
            "rate": (tr("Throughput"), make("rate", words=PACE_WORDS, from_zero=True, digits=2)),
            "wait": (tr("Loader wait"), share),
            "heat": (tr("Utilisation"), self._heat),
            "lr": (tr("Learning rate"), make("lr", words=LR_WORDS, digits=5)),
            "norm": (tr("Gradient norm"), make("norm", words=NORM_WORDS, digits=5)),
        }
        for name, (title, body) in bodies.items():
            self.cards[name] = ChartCard(title, theme, body, partial(self._rows, name))
            if name == "bars":
                self.cards["metrics"] = self._logged = LoggedCard(
                    tr("Logged by the script"), theme, lambda: self.shown, self.cards["loss"], self._show_loss
                )
        return ArrangedGrid(self.cards, devices=("bars", "heat"), optional=("lr", "norm"))

    def _rows(self, card: str) -> Iterable[Row | ManyRows]:
        return script_figures.csv_rows[card](self.shown)

    def _curves(self, run: RunAnswers) -> Mapping[str, Curves]:
        script, lrs = run.fold.script, run.fold.lrs
        is_counted = run.samples_per_s is not None
        steps = script.step_rates, script.step_rate_ema
        return {
            "loss": (run.losses, run.loss_ema, None),
            "rate": (*((run.rates, run.rate_ema) if is_counted else steps), None),
            "wait": (script.waits, script.waits, None),
            "lr": (lrs, lrs, None),
            "norm": (script.grad_norms, script.grad_norms, None),
        }

    def _facts_parts(self, theme: Theme) -> Sequence[Part]:
        self._facts = FactsLine(theme, tr("What runs"))
        return (self._facts,)

    @property
    def _busy_words(self) -> str:
        return tr("% SM") if self.shown.has_gpus else tr("CPU busy")

    def _stats(self) -> tuple[Stat, ...]:
        return script_figures.stats(self.shown)

    def _headline(self) -> tuple[str, str, str] | None:
        return script_figures.headline(self.shown)

    def _live_actions(self) -> list[PageAction]:
        return [PageAction("debug-stop", tr("Stop this run"), "run.stop")]

    def _ended_actions(self) -> list[PageAction]:
        compare = PageAction("git-compare", tr("Compare"), "run.compare")
        return [PageAction("debug-rerun", tr("Run Again"), "run.again"), compare]

    def _refresh_cards(self, pending: Changed) -> None:
        run = self.shown
        if pending & (Changed.STATE | Changed.MEMORY):
            self._show_state_of_cards()
        if pending & (Changed.MEMORY | Changed.STATE | Changed.READINGS):
            self._show_memory()
        if pending & (Changed.READINGS | Changed.STATE):
            self._show_heat()
        if pending & (Changed.STEPS | Changed.STATE):
            self._show_curves()
        if self._logged.take(pending) or pending:
            shown = script_figures.shown_cards(run)
            if self._logged.is_filled:
                shown.add("metrics")
            self.grid.show_only(shown)

    def _show_state_of_cards(self) -> None:
        run = self.shown
        self._facts.set_figure(script_figures.facts(run))
        for name in ("bars", "band"):
            self.cards[name].set_source(tr(run.source or ""))

    def _show_curves(self) -> None:
        """Loss, pace and waiting; samples instead of steps once they are seen."""
        run = self.shown
        for name, curves in self._curves(run.charted).items():
            plot = self._plot(name)
            if not isinstance(plot, CurvePlot):
                continue
            if name == "loss":
                plot.awaited = script_figures.absence(run, "loss")
            elif name == "rate":
                plot.awaited = script_figures.absence(run)
            if name == "rate":
                plot.set_curves(*curves, digits=0 if run.samples_per_s is not None else 2)
            elif name != "loss" or not self._logged.is_large:
                plot.set_curves(*curves)
            plot.request_draw()
        if not self._logged.is_large:
            self.cards["loss"].set_subtitle(*script_figures.loss_subtitle(run))
        self.cards["rate"].set_subtitle(script_figures.rate_subtitle(run))
        self.cards["wait"].set_subtitle(script_figures.wait_subtitle(run))

    def _step_marked(self, card: str, step: float | None) -> float | None:
        """What a script logs stands over its own count of steps."""
        return None if card == "loss" and self._logged.is_large else step

    def _show_loss(self) -> None:
        """After a curve that the script logs stood in its place."""
        run, card = self.shown, self.cards["loss"]
        card.set_subtitle(*script_figures.loss_subtitle(run))
        if isinstance(plot := card.made_body, CurvePlot):
            plot.set_curves(*self._curves(run.charted)["loss"], digits=4, words=_LOSS_WORDS)

"""Store one attempt's reports about a device, and the state of a device across consecutive attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rankdeck import events
from rankdeck.base.phrases import phrase
from rankdeck.run.batch import MemoryColumns, Peak, ReadingColumns
from rankdeck.run.breakdown import break_down
from rankdeck.run.series import Curve, Series

HISTORIES = ("peak_history", "owners_history", "used_history", "utilisation_history")
_MAX_PEAKS = 4096
_MAX_HOST_LENGTH = 15
_SAMPLED_SOURCES = (events.MEASURED_IN_REHEARSAL, events.FOLLOWED)


def _history(*, keyed: bool = False) -> Series:
    return Series(32_768, 4_096, keyed=keyed)


@dataclass
class AttemptDevice:
    """One attempt's reports about a device. The x values of the histories are Unix times.

    `peaks` lists each sampled step whose peak is larger than all earlier peaks, so that the last remaining
    entry is still the largest after a cut. `owners_history` is used for a script if only its tensors with a
    known owner were counted.
    """

    latest_memory: Peak | None = None
    peaks: list[Peak] = field(default_factory=list)
    latest_readings: dict[str, object] = field(default_factory=dict)
    used_peak_bytes: int | None = None
    busy_s: float = 0.0
    observed_s: float = 0.0
    interval_s: float = 0.0
    lost_at: float | None = None
    peak_history: Series = field(default_factory=lambda: _history(keyed=True))
    owners_history: Series = field(default_factory=lambda: _history(keyed=True))
    used_history: Series = field(default_factory=_history)
    utilisation_history: Series = field(default_factory=_history)

    def add_memory(self, columns: MemoryColumns) -> None:
        """Add sampled steps, in the order in which the rank that drives the device reports them."""
        self.latest_memory = columns.latest
        for peak in columns.new_peaks:
            if not self.peaks or peak.size > self.peaks[-1].size:
                self.peaks.append(peak)
        # Drop every second peak, but never the last one: it is the largest.
        if len(self.peaks) > _MAX_PEAKS:
            self.peaks = self.peaks[1::2] if len(self.peaks) % 2 == 0 else self.peaks[::2]
        for history, sampled in (
            (self.peak_history, columns.measured),
            (self.owners_history, columns.owners),
        ):
            if sampled.t:
                history.append_many(sampled.t, sampled.num_bytes, sampled.step)

    def add_readings(self, readings: ReadingColumns) -> None:
        self.latest_readings |= readings.latest
        if readings.used_bytes:
            self.used_history.append_many(readings.used_t, readings.used_bytes)
            self.used_peak_bytes = max(*readings.used_bytes, self.used_peak_bytes or 0)
        if readings.utilisation:
            self.utilisation_history.append_many(readings.utilisation_t, readings.utilisation)
            self.interval_s = readings.interval_s[-1]
            # One at a time, so that the rounding of the sums does not depend on where batches were cut.
            for utilisation, interval_s in zip(readings.utilisation, readings.interval_s, strict=True):
                self.busy_s += utilisation * interval_s
                self.observed_s += interval_s

    def cut(self, last: int) -> None:
        """Discard memory values after step `last`; keep the driver's readings, which belong to no step."""
        self.peaks = [peak for peak in self.peaks if peak.step <= last]
        if self.latest_memory is not None and self.latest_memory.step > last:
            self.latest_memory = self.peaks[-1] if self.peaks else None
        self.peak_history.cut(last)
        self.owners_history.cut(last)


@dataclass
class DeviceState:
    """State of one device of the run.

    `memory` is the memory in the newest sampled step (`memory_step`), `peak` the sampled step with the
    largest peak, and `num_sampled` the number of steps that the ledger tracked (0 for a GPU, whose peaks
    cover all steps). The x values of the histories are seconds since the start of the run.
    """

    device: int
    info: events.DeviceInfo | None
    histories: Mapping[str, Curve] = field(compare=False)
    memory: events.DeviceMemory | None = None
    memory_step: int | None = None
    peak: Peak | None = None
    num_sampled: int = 0
    used_bytes: int | None = None
    used_peak_bytes: int | None = None
    utilisation: float | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    processes: Sequence[events.ProcessUse] | None = None
    lost_at: float | None = None
    interval_s: float = 0.0
    busy_s: float = 0.0
    observed_s: float = 0.0

    def add_attempt(self, attempt_device: AttemptDevice) -> None:
        """Add the reports of a later attempt with the same setup."""
        if attempt_device.latest_memory is not None:
            self.memory_step, self.memory, _ = attempt_device.latest_memory
        if attempt_device.peaks and (self.peak is None or attempt_device.peaks[-1].size > self.peak.size):
            self.peak = attempt_device.peaks[-1]
        if self.source in _SAMPLED_SOURCES:
            self.num_sampled += len(attempt_device.peak_history)
        for name, value in attempt_device.latest_readings.items():
            # The keys are field names of this class (batch.ReadingColumns.latest).
            setattr(self, name, value)
        if attempt_device.used_peak_bytes is not None:
            self.used_peak_bytes = max(attempt_device.used_peak_bytes, self.used_peak_bytes or 0)
        self.busy_s += attempt_device.busy_s
        self.observed_s += attempt_device.observed_s
        self.interval_s = attempt_device.interval_s or self.interval_s
        self.lost_at = attempt_device.lost_at

    @property
    def kind(self) -> str | None:
        """Kind of device: gpu | virtual."""
        return None if self.info is None else self.info.kind

    @property
    def uuid(self) -> str | None:
        return None if self.info is None else self.info.uuid

    @property
    def total_bytes(self) -> int | None:
        return None if self.info is None else self.info.total_bytes

    @property
    def host(self) -> str:
        """The host's name, shortened and without its domain; "" in a run on one host."""
        name = "" if self.info is None else self.info.host
        # An IPv4 address has no domain to remove.
        short = name if name.replace(".", "").isdecimal() else name.partition(".")[0]
        return short if len(short) <= _MAX_HOST_LENGTH else f"{short[: _MAX_HOST_LENGTH - 1]}…"

    @property
    def label(self) -> str:
        name = (
            phrase("Virtual {device}", device=self.device) if self.kind == "virtual" else f"GPU {self.device}"
        )
        return phrase("{host} {device}", host=self.host, device=name) if self.host else name

    @property
    def live_bytes(self) -> int | None:
        return None if self.memory is None else self.memory.live_bytes

    @property
    def live_by_kind(self) -> Mapping[str, int] | None:
        return None if self.memory is None else self.memory.live_by_kind

    @property
    def peak_bytes(self) -> int | None:
        """The largest peak; None if only tensors with known owners were counted: their sum is not a peak."""
        return None if self.largest_memory is None or self.is_owners_only else self.largest_memory.peak_bytes

    @property
    def peak_by_kind(self) -> Mapping[str, int] | None:
        return (
            None if self.largest_memory is None or self.is_owners_only else self.largest_memory.peak_by_kind
        )

    @property
    def largest_memory(self) -> events.DeviceMemory | None:
        """Memory of the step with the largest peak."""
        return None if self.peak is None else self.peak.memory

    @property
    def source(self) -> str | None:
        """Source of the memory values (events.Memory.source)."""
        return None if self.peak is None else self.peak.source

    @property
    def is_owners_only(self) -> bool:
        """Whether the memory values are those of a user script and count only tensors with a known owner."""
        return self.source == events.OWNERS_SEEN

    @property
    def utilisation_mean(self) -> float | None:
        return self.busy_s / self.observed_s if self.observed_s > 0 else None

    @property
    def breakdown(self) -> dict[str, int] | None:
        """The GPU's memory by segment in the driver's last reading; None if there has been no reading."""
        if self.used_bytes is None or self.info is None:
            return None
        return break_down(
            self.used_bytes,
            self.memory,
            self.processes,
            total_bytes=self.info.total_bytes,
            driver_bytes=self.info.driver_bytes,
        )

    @property
    def peak_history(self) -> Curve:
        return self.histories["peak_history"]

    @property
    def owners_history(self) -> Curve:
        return self.histories["owners_history"]

    @property
    def used_history(self) -> Curve:
        return self.histories["used_history"]

    @property
    def utilisation_history(self) -> Curve:
        return self.histories["utilisation_history"]

    @property
    def memory_history(self) -> Curve:
        """The driver's readings if any, else the peaks of sampled steps, else the memory of tensors with a
        known owner."""
        candidates = (self.used_history, self.peak_history, self.owners_history)
        return next((history for history in candidates if len(history)), self.peak_history)

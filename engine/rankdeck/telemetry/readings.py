"""Format of `rankdeck devices --follow --json`: one JSON object per line, with its encoder and decoder.

    devices    the list of devices: the first line, and again whenever it changes
    sample     readings of devices at one moment; each metric has its own rate (METRICS)
    processes  the processes that hold memory on each device, once a second
    notice     an event: a lost GPU, an XID error, a sampler that ended and was restarted

    {"kind":"devices","t":1790000000.0,"provider":"nvml","driver":"580.95.05","devices":[{"uuid":"GPU-51...",
     "index":0,"name":"NVIDIA H100 80GB HBM3","vendor":"nvidia","total_bytes":85520809984,...}]}
    {"kind":"sample","t":1790000000.1,"devices":[{"uuid":"GPU-51...","readings":{
     "used_bytes":{"value":4194304,"unit":"B","age_s":0.0002},
     "fan":{"state":"unsupported","unit":"ratio"}}}]}
    {"kind":"processes","t":1790000000.1,"devices":[{"uuid":"GPU-51...","run":"20261121-101500-gpt-ddp-1a2b",
     "processes":[{"pid":4711,"name":"python","used_bytes":3221225472}]}]}
    {"kind":"notice","t":1790000007.3,"code":"lost","uuid":"GPU-51...","message":"GPU 0 ... is lost."}

Everything is keyed by UUID. Omitted keys have the defaults of the structs below. A reading is a value, or the
reason why there is none; an unknown value is never written as 0. A sample holds the readings since the last
sample; omitted metrics are unchanged. Read registry.py next: it aggregates lines into the current state.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import msgspec

from rankdeck.base.parsing import decode_json
from rankdeck.base.phrases import TranslatableStruct, phrase, tr_noop
from rankdeck.events import ProcessUse as ProcessUse

ReadingState = Literal["value", "unsupported", "error", "stale"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: its unit, its rate, and a translatable description.

    `hz` is the rate at which the sampler reads it. A value below 0 or above `maximum` is invalid on any GPU.
    `on_request` means that reading the metric takes a long time, so it is read only on request.
    """

    name: str
    unit: str
    hz: float
    description: str
    maximum: float
    on_request: bool = False

    @property
    def stale_after_s(self) -> float:
        """Age at which a reading becomes stale."""
        # Three missed readings, but at least 1.5 s: a device in use by a run is read only once a second.
        return max(1.5, 3 / self.hz)


METRICS = {
    metric.name: metric
    for metric in (
        Metric(
            "used_bytes",
            "B",
            10,
            tr_noop("memory in use, excluding the driver's own reserve if the driver reports one"),
            2**50,
        ),
        Metric(
            "utilisation",
            "ratio",
            5,
            tr_noop("share of the last sample period (1/6 to 1 s) with a kernel running (0..1)"),
            1,
        ),
        Metric(
            "memory_utilisation",
            "ratio",
            5,
            tr_noop(
                "share of the last sample period (1/6 to 1 s) in which memory was read or written (0..1)"
            ),
            1,
        ),
        Metric("power_w", "W", 2, tr_noop("power draw, on most cards the mean of the last second"), 20_000),
        Metric("energy_j", "J", 2, tr_noop("energy since the driver was loaded"), 1e13),
        Metric("temperature_c", "C", 1, tr_noop("temperature of the GPU core"), 200),
        Metric("sm_clock_mhz", "MHz", 1, tr_noop("clock of the streaming multiprocessors"), 10_000),
        Metric("memory_clock_mhz", "MHz", 1, tr_noop("memory clock"), 50_000),
        Metric("performance_state", "P", 1, tr_noop("0 is the fastest, 15 the slowest"), 15),
        Metric(
            "throttle",
            "bits",
            1,
            "why clocks are lowered, as NVML's bits; throttle_reasons() names them",
            2**32,
        ),
        Metric("fan", "ratio", 1, tr_noop("intended fan speed (0..1)"), 2),
        Metric(
            "ecc_errors", "count", 1, tr_noop("uncorrected memory errors since the driver was loaded"), 2**40
        ),
        Metric(
            "ecc_corrected", "count", 1, tr_noop("corrected memory errors since the driver was loaded"), 2**40
        ),
        Metric(
            "pcie_tx_bps", "B/s", 1, tr_noop("sent over PCIe, measured over 20 ms"), 1e12, on_request=True
        ),
        Metric(
            "pcie_rx_bps", "B/s", 1, tr_noop("received over PCIe, measured over 20 ms"), 1e12, on_request=True
        ),
    )
}
DEFAULT_METRICS = tuple(metric.name for metric in METRICS.values() if not metric.on_request)
STATE_TEXTS = {
    "value": tr_noop("value"),
    "unsupported": tr_noop("unsupported"),
    "error": tr_noop("error"),
    "stale": tr_noop("stale"),
}


class SamplerLine(TranslatableStruct, tag_field="kind", omit_defaults=True, kw_only=True):
    """Base of all lines: `t` is Unix time in seconds, `v` the version of this format."""

    t: float = msgspec.field(default_factory=time.time)
    v: int = 1


class Device(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A device, or a MIG instance (`parent` is then the UUID of its GPU).

    `index` is nvidia-smi's index; an instance has the index of its GPU. `simulated`: a stand-in library
    answers instead of the driver. `unified`: the device uses the host's memory, so `total_bytes` is None if
    the driver does not report it. `driver_bytes`: memory reserved by the driver; it is neither used nor free.
    `capabilities`: metrics that the device supports. `lost_at`: the time (Unix seconds) since which the
    device has not answered; `why`: the driver's message. `host_bytes`: the host's memory, for a unified
    device. `ecc`: whether error correction is on. `rows_...`: numbers of memory rows that were replaced by
    spares, whether replacements are pending until a reset, and whether one failed. `links_up`: how many of
    the `num_links` NVLinks are active. If two devices report the same UUID, the second device's UUID has its
    list position appended.
    """

    uuid: str
    index: int
    name: str
    vendor: str = "nvidia"
    total_bytes: int | None = None
    parent: str | None = None
    simulated: bool = False
    unified: bool = False
    mig: bool = False
    driver_bytes: int | None = None
    power_limit_w: float | None = None
    host_bytes: int | None = None
    max_sm_clock_mhz: int | None = None
    max_memory_clock_mhz: int | None = None
    ecc: bool | None = None
    rows_corrected: int | None = None
    rows_uncorrected: int | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    num_links: int | None = None
    links_up: int | None = None
    capabilities: list[str] = msgspec.field(default_factory=list)
    lost_at: float | None = None
    why: str | None = None


def placeholder_uuid(index: int) -> str:
    """Return the stand-in UUID of a GPU that does not answer."""
    return f"lost-{index}"


def indexed_uuid(uuid: str, index: int) -> str:
    """Return the stand-in UUID of a device that reports no UUID or another device's UUID."""
    return f"{uuid}#{index}"


def is_indexed_uuid(uuid: str) -> bool:
    """Check whether a UUID was made by `indexed_uuid`; no driver can find a device by such a UUID."""
    return "#" in uuid


class Reading(msgspec.Struct, omit_defaults=True):
    """One metric at one moment; `value` is None unless `state` is "value" or "stale".

    unsupported: the device has no such metric. error: the driver failed, see `detail`. stale: the value was
    read `age_s` seconds before the line's `t`, and there is no newer one.
    """

    value: float | int | None = None
    state: ReadingState = "value"
    unit: str = ""
    age_s: float = 0.0
    detail: str | None = None


class DeviceReadings(msgspec.Struct):
    """Readings of one device, by metric name."""

    uuid: str
    readings: dict[str, Reading]


class DeviceProcesses(msgspec.Struct, omit_defaults=True):
    """Processes on a device. `processes` is None if unknown; `state` is then the reason.

    `run`: the directory of the run that holds the device's lease.
    """

    uuid: str
    processes: list[ProcessUse] | None = None
    state: ReadingState = "value"
    run: str | None = None


class DevicesLine(SamplerLine, tag="devices"):
    """All devices in nvidia-smi's order, each GPU followed by its MIG instances. `provider`: nvml | host."""

    devices: list[Device]
    provider: str = "nvml"
    driver: str | None = None
    simulated: bool = False


class SampleLine(SamplerLine, tag="sample"):
    """Readings since the last sample."""

    devices: list[DeviceReadings]


class ProcessesLine(SamplerLine, tag="processes"):
    """Processes that hold memory on each device."""

    devices: list[DeviceProcesses]


class NoticeLine(SamplerLine, tag="notice"):
    """A notice about an event, such as the loss of a GPU.

    `count`: for a frequent event, the number of times that it has happened since the last notice.

    `code`:
    lost       the GPU `uuid` no longer answers; it remains in the list of devices, with the time of the loss.
    back       the lost GPU `uuid` answers again.
    xid        the driver reported error number `xid` of the GPU `uuid`.
    changed    the list of devices has changed; a `devices` line follows.
    slow       a call on the GPU `uuid` took so long that its metric is read less often.
    silent     no line has come from the sampler for a while, so the values shown are old.
    restarted  the sampler ended (perhaps the driver's library crashed), and a new one starts.
    no-driver  there is no NVIDIA driver; the stream ends.
    driver     the driver does not answer (after an update: restart the machine).
    """

    code: str
    message: str
    advice: str | None = None
    uuid: str | None = None
    xid: int | None = None
    severity: str = "warning"
    count: int = 1

    def phrase_of(self, text: str) -> str:
        """Return the translatable phrase from which `text` (the message or the advice) was made; if there is
        none, return `text`."""
        original = self.phrases.get(text)
        return text if original is None else phrase(original.template, **original.arguments)


AnySamplerLine = DevicesLine | SampleLine | ProcessesLine | NoticeLine

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnySamplerLine] = msgspec.json.Decoder(AnySamplerLine)


def encode(line: SamplerLine) -> bytes:
    """Return one JSON line with its newline."""
    return _encoder.encode(line) + b"\n"


def decode(line: bytes) -> AnySamplerLine | None:
    """Decode a line; None if it is invalid or of a kind that this version does not support."""
    try:
        return decode_json(_decoder.decode, line)
    except msgspec.DecodeError:
        return None


_THROTTLE_REASONS = {
    0x4: tr_noop("power limit"),
    0x8: tr_noop("hardware slowdown"),
    0x20: tr_noop("thermal limit"),
    0x40: tr_noop("hardware thermal slowdown"),
    0x80: tr_noop("power brake"),
}


def throttle_reasons(bits: int) -> list[str]:
    """Return the notable reasons why clocks are lowered, as translatable texts; empty for an idle or
    unthrottled GPU."""
    return [text for bit, text in _THROTTLE_REASONS.items() if bits & bit]

"""What `rankdeck devices --follow --json` writes: one JSON line per fact, and how to read it back.

    devices    which devices there are: first of all, and again whenever that changes
    sample     readings of devices at one moment; each metric comes at its own rate (METRICS)
    processes  who holds memory of which device, once a second
    notice     something happened: a GPU was lost, an XID error, a sampler that died and began anew

    {"kind":"devices","t":1790000000.0,"provider":"nvml","driver":"580.95.05","devices":[{"uuid":"GPU-51...",
     "index":0,"name":"NVIDIA H100 80GB HBM3","vendor":"nvidia","total_bytes":85520809984,...}]}
    {"kind":"sample","t":1790000000.1,"devices":[{"uuid":"GPU-51...","readings":{
     "used_bytes":{"value":4194304,"unit":"B","age_s":0.0002},
     "fan":{"state":"unsupported","unit":"ratio"}}}]}
    {"kind":"processes","t":1790000000.1,"devices":[{"uuid":"GPU-51...","run":"20261121-101500-gpt-ddp-1a2b",
     "processes":[{"pid":4711,"name":"python","used_bytes":3221225472}]}]}
    {"kind":"notice","t":1790000007.3,"code":"lost","uuid":"GPU-51...","message":"GPU 0 ... is lost."}

Everything is keyed by UUID. What is left out has the default that the struct below gives it. A reading is a
value, or says why there is none; it is never 0 for what is not known. A sample holds what was read since the
last one: what it leaves out is as it was. Read registry.py next: it folds lines into what is true now.
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
    """What is read: its unit, how often, and what the number means, as a marked text. `hz` is the rate of the
    sampler; a number below 0 or above `maximum` is no reading of any card. `on_request`: a reading takes
    long.
    """

    name: str
    unit: str
    hz: float
    description: str
    maximum: float
    on_request: bool = False

    @property
    def stale_after_s(self) -> float:
        """The age from which a reading is no longer what is true now."""
        return max(1.5, 3 / self.hz)


METRICS = {
    metric.name: metric
    for metric in (
        Metric(
            "used_bytes",
            "B",
            10,
            tr_noop("memory in use, without the driver's own reserve where it tells that"),
            2**50,
        ),
        Metric(
            "utilisation", "ratio", 5, tr_noop("share of the last 1/6 to 1 s with a kernel running (0..1)"), 1
        ),
        Metric(
            "memory_utilisation",
            "ratio",
            5,
            tr_noop("share of that time in which memory was read or written"),
            1,
        ),
        Metric("power_w", "W", 2, tr_noop("drawn power, on most cards the mean of the last second"), 20_000),
        Metric("energy_j", "J", 2, tr_noop("energy since the driver was loaded"), 1e13),
        Metric("temperature_c", "C", 1, tr_noop("the GPU's core"), 200),
        Metric("sm_clock_mhz", "MHz", 1, tr_noop("clock of the multiprocessors"), 10_000),
        Metric("memory_clock_mhz", "MHz", 1, tr_noop("clock of the memory"), 50_000),
        Metric("performance_state", "P", 1, tr_noop("0 is the fastest, 15 the slowest"), 15),
        Metric(
            "throttle",
            "bits",
            1,
            "why clocks are lowered, as NVML's bits; throttle_words() names them",
            2**32,
        ),
        Metric("fan", "ratio", 1, tr_noop("intended speed of the fan (0..1)"), 2),
        Metric(
            "ecc_errors", "count", 1, tr_noop("uncorrected memory errors since the driver was loaded"), 2**40
        ),
        Metric("ecc_corrected", "count", 1, tr_noop("memory errors that were corrected since then"), 2**40),
        Metric("pcie_tx_bps", "B/s", 1, tr_noop("sent over PCIe, over 20 ms"), 1e12, on_request=True),
        Metric("pcie_rx_bps", "B/s", 1, tr_noop("received over PCIe, over 20 ms"), 1e12, on_request=True),
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
    """What every line has: `t` is Unix time in seconds, `v` the version of this page."""

    t: float = msgspec.field(default_factory=time.time)
    v: int = 1


class Device(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A device, or a MIG instance of one (`parent` is then the UUID of the GPU that it is a part of).

    `index` is nvidia-smi's; an instance has its GPU's. `simulated`: the library that answers is no driver.
    `unified`: the memory is the host's, so `total_bytes` is None where the driver does not tell.
    `driver_bytes`: what the driver keeps for itself; it is neither used nor free. `capabilities`: the metrics
    that the device can tell. `lost_at`: since when (Unix seconds) it answers no more; `why`, as the driver
    says. `host_bytes`: the host's memory, of a unified one. `ecc`: whether memory errors are corrected.
    `rows_...`: rows of memory that were replaced by spare ones, whether some wait for a reset, and whether
    one could not be. `links_up` of `num_links` NVLinks carry data. A UUID that two devices tell is the first
    one's; the other's has its place behind it.
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
    """What stands for the UUID of a GPU that does not answer, until it does."""
    return f"lost-{index}"


def indexed_uuid(uuid: str, place: int) -> str:
    """What stands for the UUID of a device that tells another's, or none."""
    return f"{uuid}#{place}"


def is_indexed_uuid(uuid: str) -> bool:
    """Whether it is one of `indexed_uuid`: no driver knows a device by it."""
    return "#" in uuid


class Reading(msgspec.Struct, omit_defaults=True):
    """One metric at one moment; `value` is None unless `state` is "value" or "stale".

    unsupported: the device has no such reading. error: the driver failed, `detail` says how. stale: there was
    a value, `age_s` seconds before the line's `t`, and no newer one since.
    """

    value: float | int | None = None
    state: ReadingState = "value"
    unit: str = ""
    age_s: float = 0.0
    detail: str | None = None


class DeviceReadings(msgspec.Struct):
    """Readings of one device, by the name of the metric."""

    uuid: str
    readings: dict[str, Reading]


class DeviceProcesses(msgspec.Struct, omit_defaults=True):
    """Who is on a device. `processes` is None where that is not known; `state` then says why.

    `run`: the path of the run that holds the device's lease.
    """

    uuid: str
    processes: list[ProcessUse] | None = None
    state: ReadingState = "value"
    run: str | None = None


class DevicesLine(SamplerLine, tag="devices"):
    """All devices in nvidia-smi's order, MIG instances after their GPU. `provider`: nvml | host."""

    devices: list[Device]
    provider: str = "nvml"
    driver: str | None = None
    simulated: bool = False


class SampleLine(SamplerLine, tag="sample"):
    """What was read since the sample before."""

    devices: list[DeviceReadings]


class ProcessesLine(SamplerLine, tag="processes"):
    """Who holds memory of which device."""

    devices: list[DeviceProcesses]


class NoticeLine(SamplerLine, tag="notice"):
    """Something that happened, in words.

    `count`: how often it happened since it was last told, where it may come often.

    `code`:
    lost       a GPU answers no more; `uuid`. It stays among the devices, with the time.
    back       it answers again; `uuid`.
    xid        the driver reported an error of a GPU; `uuid`, `xid` its number.
    changed    there are other devices than before; a `devices` line follows.
    slow       a call took so long that its metric is read less often; `uuid`.
    silent     the sampler has not been heard of for a while: what is shown is old.
    restarted  the sampler ended (a crash of the driver's library) and a new one begins.
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
        """The message or the advice as the phrase that it was, where it was one."""
        made = self.phrases.get(text)
        return text if made is None else phrase(made.template, **made.arguments)


AnySamplerLine = DevicesLine | SampleLine | ProcessesLine | NoticeLine

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnySamplerLine] = msgspec.json.Decoder(AnySamplerLine)


def encode(line: SamplerLine) -> bytes:
    """One JSON line with its line feed."""
    return _encoder.encode(line) + b"\n"


def decode(line: bytes) -> AnySamplerLine | None:
    """The line's fact, or None for one that this version does not know or that is no fact at all."""
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
    """What lowers the clocks, of what is worth telling, in marked texts; empty for an idle or a free GPU."""
    return [words for bit, words in _THROTTLE_REASONS.items() if bits & bit]

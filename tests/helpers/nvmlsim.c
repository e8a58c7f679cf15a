/* A simulated libnvidia-ml.so.1 for machines without a GPU: real pynvml, nvitop and gpustat read it.
 *
 * Every answer comes from one `struct state` in a file that NVMLSIM_STATE names and that a test edits while
 * readers run (nvmlsim.py mirrors the layout and checks it). Without the variable the state is this process's
 * own, with NVMLSIM_GPUS devices (8).
 *
 *   failures are data   per device and kind of call a return code and a delay; kind ANY is every call.
 *                       CRASH and ABORT end the process, as libraries have done on a lost GPU
 *   the count of GPUs   is latched by the first nvmlInit, unless live_count
 *   used memory         version 1 counts the driver's reserve as used, version 2 tells it apart
 *   processes           the two-step size protocol; bytes may be not available
 *   MIG instances       entries with a parent; no utilisation, power, temperature, fan or clocks of their own
 *   calls[]             counts the calls by device and kind, so that a test can bound them
 *   session             of the driver; a library that was opened in another one never answers again
 *   fuzz                a device that has a seed answers what it likes: any code, any number, any bytes of a
 *                       text, any count. The library's own seed does so for what is of no device
 *   -DOLD_DRIVER        leaves out what drivers before 510 do not export
 *   -DFIRST_LISTS       only the lists of processes of drivers before 460, with their shorter entries
 *
 * Names, return codes and layouts are NVML's published interface.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, TIMEOUT = 10, UNKNOWN = 999, ABORT = -6, CRASH = -11 };
enum kind { ANY, STATIC, MEMORY, UTILISATION, POWER, ENERGY, TEMPERATURE, FAN, CLOCK, THROTTLE, ECC, COMPUTE,
            GRAPHICS, PROCESS_UTILISATION, MIG, EVENT, LINK, PCIE, NUM_KINDS };
enum { MAX_DEVICES = 32, MAX_PROCESSES = 32, MAX_EVENTS = 64, LAYOUT = 0x52444b32 };

struct process { u32 pid, graphics; u64 used; u32 utilisation, pad; };
struct device {
    int32_t parent;                             /* of a MIG instance: the index of its GPU; else -1 */
    u32 bus;
    char name[96], uuid[96];
    u64 total, used, reserved, energy_mj, throttle, ecc_errors;
    u32 utilisation, memory_utilisation, power_mw, power_limit_mw, celsius, fan, sm_mhz, memory_mhz;
    u32 mig, num_processes, pstate, max_sm_mhz, max_memory_mhz, num_links, links_up, pcie_tx_kb, pcie_rx_kb;
    u32 rows_corrected, rows_uncorrected, rows_pending, rows_failed, corrected_ecc_errors;
    u64 fuzz;
    int32_t error[NUM_KINDS];
    u32 delay_us[NUM_KINDS];
    u64 calls[NUM_KINDS];
    struct process processes[MAX_PROCESSES];
};
struct event { u32 device, pad; u64 type, data; };
struct state {
    u32 layout, num_gpus, num_instances, num_events;
    int32_t init_error;
    u32 live_count;                             /* as of drivers that tell a changed count without an init */
    u64 fuzz;
    u32 session;
    int32_t wait_error;                         /* of waiting for events */
    char driver[80];
    struct event events[MAX_EVENTS];            /* a ring; num_events counts all that were ever posted */
    struct device devices[MAX_DEVICES];         /* GPUs, then instances */
};

static struct state *S;
static int references;
static u32 num_gpus, session;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

size_t nvmlsim_layout(int part) {
    return part == 0 ? sizeof(struct state) : part == 1 ? sizeof(struct device) : NUM_KINDS;
}

static void fill(struct state *s) {
    const char *text = getenv("NVMLSIM_GPUS");
    s->layout = LAYOUT;
    s->num_gpus = text ? (u32)atoi(text) : 8;
    if (s->num_gpus > MAX_DEVICES) s->num_gpus = MAX_DEVICES;
    strcpy(s->driver, "580.00.00");
    for (u32 i = 0; i < s->num_gpus; i++) {
        struct device *d = &s->devices[i];
        *d = (struct device){ .parent = -1, .bus = 0x10 + i, .total = 81559ull << 20, .used = 4ull << 20,
                              .reserved = 608ull << 20, .power_mw = 70000, .power_limit_mw = 700000,
                              .celsius = 30 + i, .sm_mhz = 345, .memory_mhz = 2619, .max_sm_mhz = 1980,
                              .max_memory_mhz = 2619, .num_links = 18, .links_up = 18 };
        strcpy(d->name, "NVIDIA H100 80GB HBM3");
        snprintf(d->uuid, sizeof d->uuid, "GPU-51000000-0000-4000-8000-%012u", i);
        d->error[FAN] = NOT_SUPPORTED;
    }
}

static int map(void) {
    const char *path = getenv("NVMLSIM_STATE");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    struct stat found;
    if (path && file < 0) return NO_PERMISSION;
    if (path && (fstat(file, &found) || (size_t)found.st_size < sizeof *S)) { close(file); return UNKNOWN; }
    void *at = mmap(NULL, sizeof *S, PROT_READ | PROT_WRITE, path ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS,
                    file, 0);
    if (file >= 0) close(file);
    if (at == MAP_FAILED) return UNKNOWN;
    S = at;
    if (!path) fill(S);
    return S->layout == LAYOUT ? OK : UNKNOWN;
}

static void pause_us(u32 us) {
    struct timespec left = { us / 1000000, (long)(us % 1000000) * 1000 };
    while (us && nanosleep(&left, &left)) {}
}

int nvmlInitWithFlags(u32 flags) {
    int code = OK;
    (void)flags;
    pthread_mutex_lock(&lock);
    if (!references && !(code = S ? OK : map()) && !(code = S->init_error)) num_gpus = S->num_gpus, session = S->session;
    if (!code) references++;
    pthread_mutex_unlock(&lock);
    return code;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return references ? (references--, OK) : UNINITIALIZED; }

/* The next number of a seed (splitmix64). */
static u64 next(u64 *seed) {
    u64 z = *seed += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* What a seed makes of an answer: as it was, all ones, zeros, small numbers, or anything. */
static void scramble(u64 *seed, void *out, size_t size) {
    if (!*seed) return;
    u64 how = next(seed) % 6;
    for (size_t i = 0; how > 1 && i < size; i++)
        ((unsigned char *)out)[i] = how == 2 ? 0xff : how == 3 ? 0 : how == 4 ? (i % 4 ? 0 : next(seed) % 9) : next(seed);
}
static int code_of(u64 *seed) {
    static const int codes[] = { 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18, 20, 25, 28, 999 };
    u64 how = *seed ? next(seed) % 4 : 1;
    return how == 0 ? codes[next(seed) % (sizeof codes / sizeof *codes)] : how == 3 && next(seed) % 8 == 0 ? (int)next(seed) & 0xffff : OK;
}

/* Every call on a device comes here first: counted, delayed, failed as the state says. */
static int enter(struct device *d, enum kind kind) {
    if (!references || session != S->session) return UNINITIALIZED;
    if (d < S->devices || d >= S->devices + MAX_DEVICES || ((char *)d - (char *)S->devices) % sizeof *d) return INVALID_ARGUMENT;
    __atomic_add_fetch(&d->calls[kind], 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&d->calls[ANY], 1, __ATOMIC_RELAXED);
    pause_us(d->delay_us[ANY] + d->delay_us[kind]);
    int code = d->error[ANY] ? d->error[ANY] : d->error[kind];
    if (!code) code = code_of(&d->fuzz);
    if (code == CRASH) raise(SIGSEGV);
    if (code == ABORT) abort();
    if (!code && d->parent >= 0 && kind >= UTILISATION && kind <= THROTTLE) return NOT_SUPPORTED;
    return code;
}
#define ENTER(handle, kind) struct device *d = (handle); { int code_ = enter(d, kind); if (code_) return code_; }

static int put(char *out, u32 room, const char *text) {
    if (strlen(text) >= room) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return OK;
}

const char *nvmlErrorString(int code) {
    switch (code) {
    case 0: return "Success";
    case 1: return "Uninitialized";
    case 2: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 6: return "Not Found";
    case 9: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return S && S->fuzz ? "Fehler \xfc" : "Unknown Error";
    }
}
int nvmlSystemGetDriverVersion(char *o, u32 n) {
    if (!references) return UNINITIALIZED;
    int code = put(o, n, S->driver);
    scramble(&S->fuzz, o, n);
    return code ? code : code_of(&S->fuzz);
}
int nvmlSystemGetNVMLVersion(char *o, u32 n) { return references ? put(o, n, "13.580.00.00") : UNINITIALIZED; }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = 13000; return references ? OK : UNINITIALIZED; }
int nvmlSystemGetCudaDriverVersion(int *v) { return nvmlSystemGetCudaDriverVersion_v2(v); }

int nvmlDeviceGetCount_v2(u32 *n) {
    *n = S && S->live_count ? S->num_gpus : num_gpus;
    return references ? OK : UNINITIALIZED;
}
int nvmlDeviceGetCount(u32 *n) { return nvmlDeviceGetCount_v2(n); }
int nvmlDeviceGetHandleByIndex_v2(u32 i, void **h) {
    if (!references) return UNINITIALIZED;
    if (i >= num_gpus) return INVALID_ARGUMENT;
    ENTER(&S->devices[i], STATIC);
    *h = d;
    return OK;
}
int nvmlDeviceGetHandleByIndex(u32 i, void **h) { return nvmlDeviceGetHandleByIndex_v2(i, h); }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **h) {
    if (!references) return UNINITIALIZED;
    for (u32 i = 0; i < num_gpus + S->num_instances && i < MAX_DEVICES; i++)
        if (!strcmp(uuid, S->devices[i].uuid)) { *h = &S->devices[i]; return OK; }
    return NOT_FOUND;
}
struct pci { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(void *h, struct pci *p) {
    ENTER(h, STATIC);
    *p = (struct pci){ .bus = d->bus, .id = 0x233010de };
    snprintf(p->legacy, sizeof p->legacy, "0000:%02X:00.0", d->bus);
    snprintf(p->bus_id, sizeof p->bus_id, "00000000:%02X:00.0", d->bus);
    return OK;
}

#define TEXT(name, field) int name(void *h, char *o, u32 n) { \
    ENTER(h, STATIC); int code = put(o, n, d->field); scramble(&d->fuzz, o, n); return code; }
#define TELL(o, ...) (*(o) = __VA_ARGS__, scramble(&d->fuzz, o, sizeof *(o)), OK)
#define NUMBER(name, kind, type, value) int name(void *h, type *o) { ENTER(h, kind); return TELL(o, value); }
TEXT(nvmlDeviceGetName, name)
TEXT(nvmlDeviceGetUUID, uuid)
NUMBER(nvmlDeviceGetIndex, STATIC, u32, (u32)(d - S->devices))
NUMBER(nvmlDeviceGetMinorNumber, STATIC, u32, (u32)(d - S->devices))
NUMBER(nvmlDeviceGetEnforcedPowerLimit, STATIC, u32, d->power_limit_mw)
NUMBER(nvmlDeviceGetPowerManagementLimit, STATIC, u32, d->power_limit_mw)
NUMBER(nvmlDeviceGetPowerUsage, POWER, u32, d->power_mw)
NUMBER(nvmlDeviceGetTotalEnergyConsumption, ENERGY, u64, d->energy_mj)
NUMBER(nvmlDeviceGetFanSpeed, FAN, u32, d->fan)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, THROTTLE, u64, d->throttle)
NUMBER(nvmlDeviceGetSupportedEventTypes, STATIC, u64, 0xffff)
NUMBER(nvmlDeviceGetPersistenceMode, STATIC, u32, 1)
NUMBER(nvmlDeviceGetDisplayActive, STATIC, u32, 0)
NUMBER(nvmlDeviceGetDisplayMode, STATIC, u32, 0)
NUMBER(nvmlDeviceGetComputeMode, STATIC, u32, 0)
NUMBER(nvmlDeviceGetPerformanceState, CLOCK, u32, d->pstate)
NUMBER(nvmlDeviceGetDriverModel, STATIC, u32, 0)
static int video(void *h, u32 *busy, u32 *period) { ENTER(h, UTILISATION); *busy = 0; *period = 167000; return OK; }
int nvmlDeviceGetEncoderUtilization(void *h, u32 *busy, u32 *period) { return video(h, busy, period); }
int nvmlDeviceGetDecoderUtilization(void *h, u32 *busy, u32 *period) { return video(h, busy, period); }
int nvmlDeviceGetPcieThroughput(void *h, u32 way, u32 *o) { ENTER(h, PCIE); return TELL(o, way ? d->pcie_rx_kb : d->pcie_tx_kb); }
int nvmlDeviceGetNvLinkState(void *h, u32 link, u32 *o) {
    ENTER(h, LINK);
    if (link >= d->num_links) return d->num_links ? INVALID_ARGUMENT : NOT_SUPPORTED;
    return TELL(o, link < d->links_up);
}
int nvmlDeviceGetRemappedRows(void *h, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    ENTER(h, ECC);
    (void)TELL(corrected, d->rows_corrected);
    (void)TELL(uncorrected, d->rows_uncorrected);
    (void)TELL(pending, d->rows_pending);
    return TELL(failed, d->rows_failed);
}
int nvmlDeviceGetCudaComputeCapability(void *h, int *major, int *minor) { ENTER(h, STATIC); *major = 9; *minor = 0; return OK; }
int nvmlDeviceGetTemperature(void *h, u32 sensor, u32 *o) { (void)sensor; ENTER(h, TEMPERATURE); return TELL(o, d->celsius); }
static int clock_of(void *h, u32 which, u32 *o) { ENTER(h, CLOCK); return TELL(o, which == 2 ? d->memory_mhz : d->sm_mhz); }
int nvmlDeviceGetClockInfo(void *h, u32 which, u32 *o) { return clock_of(h, which, o); }
int nvmlDeviceGetMaxClockInfo(void *h, u32 which, u32 *o) { ENTER(h, STATIC); return TELL(o, which == 2 ? d->max_memory_mhz : d->max_sm_mhz); }
int nvmlDeviceGetTotalEccErrors(void *h, u32 type, u32 counter, u64 *o) {
    (void)counter;
    ENTER(h, ECC);
    return TELL(o, type ? d->ecc_errors : d->corrected_ecc_errors);
}
int nvmlDeviceGetEccMode(void *h, u32 *now, u32 *next) { ENTER(h, STATIC); *now = *next = 1; return OK; }
struct rates { u32 gpu, memory; };
int nvmlDeviceGetUtilizationRates(void *h, struct rates *o) {
    ENTER(h, UTILISATION);
    return TELL(o, (struct rates){ d->utilisation, d->memory_utilisation });
}

struct memory_v1 { u64 total, free, used; };
int nvmlDeviceGetMemoryInfo(void *h, struct memory_v1 *o) {
    ENTER(h, MEMORY);
    u64 gone = d->used + d->reserved;
    return TELL(o, (struct memory_v1){ d->total, d->total - gone, gone });
}
#ifndef OLD_DRIVER
struct memory_v2 { u32 version; u64 total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *h, struct memory_v2 *o) {
    ENTER(h, MEMORY);
    return TELL(o, (struct memory_v2){ o->version, d->total, d->reserved, d->total - d->used - d->reserved, d->used });
}
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, THROTTLE, u64, d->throttle)
#endif

struct entry_v1 { u32 pid; u64 used; };
struct entry { u32 pid; u64 used; u32 gpu_instance, compute_instance; };
static int processes(void *h, enum kind kind, u32 *count, void *out, size_t size) {
    ENTER(h, kind);
    u32 room = out ? *count : 0, found = 0;
    for (u32 i = 0; i < d->num_processes && i < MAX_PROCESSES; i++) {
        struct process *p = &d->processes[i];
        if (p->graphics != (kind == GRAPHICS)) continue;
        struct entry entry = { p->pid, p->used, UINT32_MAX, UINT32_MAX };
        if (found < room) memcpy((char *)out + found * size, &entry, size);
        found++;
    }
    *count = found;
    scramble(&d->fuzz, count, sizeof *count);
    if (out) scramble(&d->fuzz, out, room * size);
    return found > room || (d->fuzz && next(&d->fuzz) % 4 == 0) ? INSUFFICIENT_SIZE : OK;
}
#define PROCESSES(name, kind, type) int name(void *h, u32 *n, void *o) { return processes(h, kind, n, o, sizeof(type)); }
PROCESSES(nvmlDeviceGetComputeRunningProcesses, COMPUTE, struct entry_v1)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, GRAPHICS, struct entry_v1)
#ifndef FIRST_LISTS
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, COMPUTE, struct entry)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, GRAPHICS, struct entry)
#ifndef OLD_DRIVER
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE, struct entry)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, GRAPHICS, struct entry)
#endif
#endif
struct sample { u32 pid; u64 stamp; u32 sm, memory, encoder, decoder; };
int nvmlDeviceGetProcessUtilization(void *h, struct sample *out, u32 *count, u64 since) {
    ENTER(h, PROCESS_UTILISATION);
    (void)since;
    u32 room = out ? *count : 0;
    *count = d->num_processes;
    if (!d->num_processes) return NOT_FOUND;    /* as drivers say that there is no new sample */
    if (room < d->num_processes) return INSUFFICIENT_SIZE;
    for (u32 i = 0; i < d->num_processes; i++)
        out[i] = (struct sample){ d->processes[i].pid, (u64)time(NULL) * 1000000, d->processes[i].utilisation, 0, 0, 0 };
    return OK;
}

int nvmlDeviceGetMigMode(void *h, u32 *now, u32 *then) { ENTER(h, MIG); *then = d->mig; return TELL(now, d->mig); }
NUMBER(nvmlDeviceGetMaxMigDeviceCount, MIG, u32, d->parent < 0 ? 7 : 0)
NUMBER(nvmlDeviceIsMigDeviceHandle, MIG, u32, d->parent >= 0)
int nvmlDeviceGetMigDeviceHandleByIndex(void *h, u32 which, void **out) {
    ENTER(h, MIG);
    for (u32 i = num_gpus; i < num_gpus + S->num_instances && i < MAX_DEVICES; i++)
        if (S->devices[i].parent == (int)(d - S->devices) && !which--) { *out = &S->devices[i]; return OK; }
    return NOT_FOUND;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *h, void **out) {
    ENTER(h, MIG);
    if (d->parent < 0) return INVALID_ARGUMENT;
    *out = &S->devices[d->parent];
    return OK;
}

struct set { u32 seen; u64 wanted[MAX_DEVICES]; };
struct data { void *device; u64 type, data; u32 gpu_instance, compute_instance; };
int nvmlEventSetCreate(struct set **out) {
    if (!references) return UNINITIALIZED;
    int code = code_of(&S->fuzz);
    if (code || !(*out = calloc(1, sizeof **out))) return code ? code : UNKNOWN;
    (*out)->seen = S->num_events;
    return OK;
}
int nvmlEventSetFree(struct set *set) { free(set); return OK; }
int nvmlDeviceRegisterEvents(void *h, u64 types, struct set *set) {
    ENTER(h, EVENT);
    set->wanted[d - S->devices] |= types;
    return OK;
}
int nvmlEventSetWait_v2(struct set *set, struct data *out, u32 timeout_ms) {
    int code = code_of(&S->fuzz);
    if (S->wait_error == CRASH) raise(SIGSEGV);
    if (code) return code;
    for (u32 waited_ms = 0;; waited_ms += 5) {
        while (set->seen != __atomic_load_n(&S->num_events, __ATOMIC_ACQUIRE)) {
            struct event e = S->events[set->seen++ % MAX_EVENTS];
            if (e.device < MAX_DEVICES && set->wanted[e.device] & e.type) {
                *out = (struct data){ &S->devices[e.device], e.type, e.data, UINT32_MAX, UINT32_MAX };
                scramble(&S->fuzz, out, sizeof *out);
                return OK;
            }
        }
        if (waited_ms >= timeout_ms) return TIMEOUT;
        pause_us(5000);
    }
}
int nvmlEventSetWait(struct set *set, struct data *out, u32 timeout_ms) { return nvmlEventSetWait_v2(set, out, timeout_ms); }

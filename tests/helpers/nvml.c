/* A driver's library with two GPUs, for what cannot exist where there is none: the calls that listing them
 * needs, answered from the environment variable FAKE_NVML. Words in it change an answer:
 *   broken    nvmlInit fails, as after an update of the driver
 *   shy       power, temperature, load and processes are refused
 *   old       no second version of the memory reading, no third of the process lists
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, FUNCTION_NOT_FOUND = 13, VERSION_MISMATCH = 18 };
#define GIB (1ull << 30)
#define UNKNOWN_BYTES 0xffffffffffffffffull

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilisation;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process;

static int is(const char *word) {
    const char *words = getenv("FAKE_NVML");
    return words != NULL && strstr(words, word) != NULL;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return is("broken") ? VERSION_MISMATCH : OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == VERSION_MISMATCH ? "Driver/library version mismatch" : "Refused"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)(size_t)(index + 1); return OK; }

int nvmlDeviceGetUUID(void *handle, char *text, unsigned length) {
    snprintf(text, length, "GPU-0000000%zu", (size_t)handle);
    return OK;
}
int nvmlDeviceGetName(void *handle, char *text, unsigned length) {
    (void)handle;
    snprintf(text, length, "Fake H100");
    return OK;
}
int nvmlDeviceGetMemoryInfo(void *handle, memory_v1 *memory) {
    (void)handle;
    *memory = (memory_v1){80 * GIB, 77 * GIB, 3 * GIB}; /* the driver's reserve counted as used */
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2 *memory) {
    (void)handle;
    if (is("old")) return FUNCTION_NOT_FOUND;
    memory->total = 80 * GIB, memory->reserved = 1 * GIB, memory->free = 77 * GIB, memory->used = 2 * GIB;
    return OK;
}
int nvmlDeviceGetUtilizationRates(void *handle, utilisation *rates) {
    (void)handle;
    *rates = (utilisation){25, 5};
    return is("shy") ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius) {
    (void)handle, (void)sensor;
    *celsius = 41;
    return is("shy") ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) {
    (void)handle;
    *milliwatts = 70500;
    return is("shy") ? NOT_SUPPORTED : OK;
}

/* GPU 0: this very process computes, and draws too; another process's bytes are not told. GPU 1 is empty. */
static int processes(void *handle, unsigned *count, process *list, const char *variable, unsigned long long used) {
    const char *pid = getenv(variable);
    if (is("shy")) return NOT_SUPPORTED;
    if ((size_t)handle != 1 || pid == NULL) { *count = 0; return OK; }
    if (*count < 1) { *count = 1; return INSUFFICIENT_SIZE; }
    *count = 1;
    list[0] = (process){(unsigned)atoi(pid), used, 0, 0};
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, process *list) {
    return processes(handle, count, list, "FAKE_COMPUTE_PID", 1 * GIB);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, process *list) {
    return processes(handle, count, list, "FAKE_GRAPHICS_PID", UNKNOWN_BYTES);
}

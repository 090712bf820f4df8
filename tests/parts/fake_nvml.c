/* A libnvidia-ml.so.1 for tests: every answer comes from a state file that a test may rewrite while
 * a program is reading it. Built against the real nvml.h, so a wrong prototype does not compile.
 *
 * The file named by FAKE_NVML_STATE holds key=value lines. D is a GPU ("0") or a MIG device ("0.mig.2"):
 *   devices, driver                        what the node has
 *   D.uuid, D.name                         strings; a MIG device exists if it has a uuid
 *   D.total, D.reserved, D.free, D.used    bytes; "none" is the driver's all-ones "not available"
 *   D.v1_used                              bytes used as version 1 tells them; total - free if absent
 *   D.compute, D.graphics, D.mps           "pid:bytes pid:none"
 *   D.capability                           CUDA compute capability, "9.0"
 *   D.utilization, D.temperature, D.power  percent, Celsius, milliwatts
 *   0.mig, 0.mig_slots                     1 while MIG is enabled; most MIG devices the GPU can have
 *   D.gpu_slices, D.compute_slices, D.memory_mib    attributes of a MIG device
 *   D.epoch                                handles taken under another value are no longer valid
 *   fail.F=code, D.fail.F, D.fail.*        make function F, or all functions of D, fail
 *   hang.F=1, D.hang.F, D.hang.*           ... not return for as long as the key is there
 *   delay_ms.F=n, D.delay_ms.F, D.delay_ms.*
 * A reading that has no key is NOT_SUPPORTED. -DOLD_DRIVER leaves out what drivers before 2022 lack.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#define _GNU_SOURCE
#include <limits.h>
#include <nvml.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

struct nvmlDevice_st {
    char prefix[32];
    unsigned gpu;
    unsigned initialization;
    unsigned long long epoch;
};

struct entry {
    char *key, *value;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry entries[4096];
static size_t entry_count;
static char *state_text;
static struct stat state_seen;
static int has_faults;
static unsigned references, initialization;

/* ---- the state file -------------------------------------------------------------------------- */

static int compare(const void *left, const void *right) {
    return strcmp(((const struct entry *)left)->key, ((const struct entry *)right)->key);
}

static void parse(char *text) {
    char *rest = NULL;
    entry_count = 0;
    has_faults = 0;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *equals = strchr(line, '=');
        if (!equals || entry_count == sizeof entries / sizeof *entries) continue;
        *equals = 0;
        entries[entry_count++] = (struct entry){line, equals + 1};
        has_faults |= strstr(line, "fail.") || strstr(line, "hang.") || strstr(line, "delay_ms.");
    }
    qsort(entries, entry_count, sizeof *entries, compare);
}

static void reload(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    struct stat now;
    if (!path || stat(path, &now)) return;
    if (now.st_ino == state_seen.st_ino && now.st_size == state_seen.st_size &&
        now.st_mtim.tv_sec == state_seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == state_seen.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    char *text = calloc(1, (size_t)now.st_size + 1);
    size_t length = fread(text, 1, (size_t)now.st_size, file);
    text[length] = 0;
    fclose(file);
    free(state_text);
    state_text = text;
    state_seen = now;
    parse(text);
}

static int text_of(const char *prefix, const char *name, char *value, size_t size) {
    char key[160];
    snprintf(key, sizeof key, "%s%s", prefix, name);
    pthread_mutex_lock(&lock);
    reload();
    struct entry *found = bsearch(&(struct entry){key, NULL}, entries, entry_count, sizeof *entries, compare);
    if (found) snprintf(value, size, "%s", found->value);
    pthread_mutex_unlock(&lock);
    return found != NULL;
}

static unsigned long long number_from(const char *value) {
    return strcmp(value, "none") ? strtoull(value, NULL, 10) : ULLONG_MAX;
}

static int number_of(const char *prefix, const char *name, unsigned long long *number) {
    char value[64];
    if (!text_of(prefix, name, value, sizeof value)) return 0;
    *number = number_from(value);
    return 1;
}

static unsigned long long number_or(const char *prefix, const char *name, unsigned long long fallback) {
    unsigned long long number;
    return number_of(prefix, name, &number) ? number : fallback;
}

/* ---- faults ---------------------------------------------------------------------------------- */

static unsigned long long fault_of(const char *kind, const char *function, nvmlDevice_t device) {
    char name[120];
    unsigned long long number;
    snprintf(name, sizeof name, "%s.%s", kind, function);
    if (number_of("", name, &number)) return number;
    if (!device) return 0;
    if (number_of(device->prefix, name, &number)) return number;
    snprintf(name, sizeof name, "%s.*", kind);
    return number_of(device->prefix, name, &number) ? number : 0;
}

static void sleep_ms(unsigned long long milliseconds) {
    struct timespec span = {(time_t)(milliseconds / 1000), (long)(milliseconds % 1000) * 1000000L};
    nanosleep(&span, NULL);
}

static int faults_present(void) {
    pthread_mutex_lock(&lock);
    reload();
    int present = has_faults;
    pthread_mutex_unlock(&lock);
    return present;
}

static nvmlReturn_t fault(const char *function, nvmlDevice_t device) {
    if (!faults_present()) return NVML_SUCCESS;
    while (fault_of("hang", function, device)) sleep_ms(2);
    sleep_ms(fault_of("delay_ms", function, device));
    return (nvmlReturn_t)fault_of("fail", function, device);
}

static nvmlReturn_t enter(const char *function, nvmlDevice_t device) {
    nvmlReturn_t result = fault(function, device);
    if (result != NVML_SUCCESS) return result;
    if (!references) return NVML_ERROR_UNINITIALIZED;
    if (device && (device->initialization != initialization || device->epoch != number_or(device->prefix, "epoch", 0)))
        return NVML_ERROR_INVALID_ARGUMENT;
    return NVML_SUCCESS;
}

#define ENTER(device)                                    \
    do {                                                 \
        nvmlReturn_t entered = enter(__func__, device);  \
        if (entered != NVML_SUCCESS) return entered;     \
    } while (0)

/* ---- the node -------------------------------------------------------------------------------- */

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    nvmlReturn_t result = fault(__func__, NULL);
    if (result == NVML_SUCCESS && references++ == 0) initialization++;
    return result;
}

nvmlReturn_t nvmlShutdown(void) {
    ENTER(NULL);
    references--;
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result) {
    (void)result;
    return "an error the fake library was told to give";
}

static nvmlReturn_t copy_text(const char *prefix, const char *name, char *value, unsigned length) {
    return text_of(prefix, name, value, length) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    ENTER(NULL);
    return copy_text("", "driver", version, length);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    ENTER(NULL);
    *count = (unsigned)number_or("", "devices", 0);
    return NVML_SUCCESS;
}

/* Handles are never freed: a program may still hold one after the device it named has gone. */
static nvmlDevice_t new_handle(const char *prefix, unsigned gpu) {
    nvmlDevice_t device = calloc(1, sizeof *device);
    snprintf(device->prefix, sizeof device->prefix, "%s", prefix);
    device->gpu = gpu;
    device->initialization = initialization;
    device->epoch = number_or(prefix, "epoch", 0);
    return device;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    if (index >= number_or("", "devices", 0)) return NVML_ERROR_INVALID_ARGUMENT;
    char prefix[32];
    snprintf(prefix, sizeof prefix, "%u.", index);
    *device = new_handle(prefix, index);
    ENTER(*device);
    return NVML_SUCCESS;
}

/* ---- one GPU or MIG device ------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    ENTER(device);
    return copy_text(device->prefix, "uuid", uuid, length);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    ENTER(device);
    return copy_text(device->prefix, "name", name, length);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    ENTER(device);
    if (!number_of(device->prefix, "total", &memory->total)) return NVML_ERROR_NOT_SUPPORTED;
    memory->free = number_or(device->prefix, "free", memory->total);
    memory->used = number_or(device->prefix, "v1_used", memory->total - memory->free);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    ENTER(device);
    unsigned long long percent;
    if (!number_of(device->prefix, "utilization", &percent)) return NVML_ERROR_NOT_SUPPORTED;
    *utilization = (nvmlUtilization_t){.gpu = (unsigned)percent};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    ENTER(device);
    char capability[16];
    if (!text_of(device->prefix, "capability", capability, sizeof capability) || sscanf(capability, "%d.%d", major, minor) != 2) return NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts) {
    ENTER(device);
    unsigned long long number;
    if (!number_of(device->prefix, "power", &number)) return NVML_ERROR_NOT_SUPPORTED;
    *milliwatts = (unsigned)number;
    return NVML_SUCCESS;
}

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *celsius) {
    ENTER(device);
    unsigned long long number;
    if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
    if (!number_of(device->prefix, "temperature", &number)) return NVML_ERROR_NOT_SUPPORTED;
    *celsius = (unsigned)number;
    return NVML_SUCCESS;
}

#ifndef OLD_DRIVER
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    ENTER(device);
    if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!number_of(device->prefix, "total", &memory->total)) return NVML_ERROR_NOT_SUPPORTED;
    memory->reserved = number_or(device->prefix, "reserved", 0);
    memory->free = number_or(device->prefix, "free", memory->total - memory->reserved);
    memory->used = number_or(device->prefix, "used", memory->total - memory->reserved - memory->free);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature) {
    ENTER(device);
    unsigned long long number;
    if (temperature->version != nvmlTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!number_of(device->prefix, "temperature", &number)) return NVML_ERROR_NOT_SUPPORTED;
    temperature->temperature = (int)number;
    return NVML_SUCCESS;
}
#endif

static nvmlReturn_t processes(nvmlDevice_t device, const char *kind, unsigned *count, nvmlProcessInfo_t *infos) {
    char list[4096] = "", *rest = NULL;
    unsigned room = infos ? *count : 0;
    text_of(device->prefix, kind, list, sizeof list);
    *count = 0;
    for (char *item = strtok_r(list, " ", &rest); item; item = strtok_r(NULL, " ", &rest)) {
        char *colon = strchr(item, ':');
        if (!colon) continue;
        if (*count < room)
            infos[*count] = (nvmlProcessInfo_t){(unsigned)strtoul(item, NULL, 10), number_from(colon + 1), ~0u, ~0u};
        ++*count;
    }
    return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos) {
    ENTER(device);
    return processes(device, "compute", count, infos);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos) {
    ENTER(device);
    return processes(device, "graphics", count, infos);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos) {
    ENTER(device);
    return processes(device, "mps", count, infos);
}

/* ---- MIG ------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    ENTER(device);
    unsigned long long enabled;
    if (!number_of(device->prefix, "mig", &enabled)) return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = (unsigned)enabled;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
    ENTER(device);
    *count = (unsigned)number_or(device->prefix, "mig_slots", 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig_device) {
    ENTER(device);
    char prefix[32], uuid[96];
    if (index >= number_or(device->prefix, "mig_slots", 0)) return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(prefix, sizeof prefix, "%u.mig.%u.", device->gpu, index);
    if (!text_of(prefix, "uuid", uuid, sizeof uuid)) return NVML_ERROR_NOT_FOUND;
    *mig_device = new_handle(prefix, device->gpu);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    ENTER(device);
    unsigned long long slices;
    if (!number_of(device->prefix, "gpu_slices", &slices)) return NVML_ERROR_NOT_SUPPORTED;
    *attributes = (nvmlDeviceAttributes_t){
        .gpuInstanceSliceCount = (unsigned)slices,
        .computeInstanceSliceCount = (unsigned)number_or(device->prefix, "compute_slices", slices),
        .memorySizeMB = number_or(device->prefix, "memory_mib", 0),
    };
    return NVML_SUCCESS;
}

/* A libnvidia-ml.so.1 without hardware. What it answers stands in the file that $NVML_STUB names; the file is read anew
   with every call, so a test changes the hardware by replacing the file. A line of it is one of

     driver VERSION             cuda NUMBER                 count N
     gpu UUID TOTAL_MB DRIVER_MB MODEL ...                  (cards, from 0 on)
     mig CARD UUID TOTAL_MB                                 (an instance of a card)
     process CARD PID MB|NA|=BYTES KIND [INSTANCE]          (KIND: compute, graphics or both)
     used CARD MB               memory CARD TOTAL FREE      (in bytes, whatever else is said)
     utilisation CARD PERCENT   worn CARD                   garbled CARD uuid|model
     partitioned CARD           (in MIG mode, also without instances)
     many CARD COUNT            (processes that it says it has)
     fail CALL CODE [CARD]      hang CALL SECONDS [CARD]    crash CALL

   CALL is the name of a function, without nvml and without its version. With -DOLD the library lacks what drivers before
   510 lacked. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS, UNINITIALIZED, INVALID, UNSUPPORTED, NOT_FOUND = 6, TOO_SMALL = 7, NO_DRIVER = 9, MOST = 64, PROCESSES = 512 };
typedef unsigned long long u64;

struct device { int card, instance; u64 total, driver, extra, raw_total, raw_free; int raw, worn, partitioned, garbled_uuid, garbled_model, rate; unsigned many; char uuid[96], model[96]; };
struct process { int card, instance, compute, graphics; unsigned pid; u64 bytes; };
struct fault { char call[80]; int code, card; double hang; int crash; };

static struct device devices[MOST];
static struct process processes[PROCESSES];
static struct fault faults[MOST];
static int device_count, process_count, fault_count, card_count, said_count, inits;
static int cuda;
static char driver[80];

static struct device *find(int card, int instance) {
    for (int i = 0; i < device_count; i++)
        if (devices[i].card == card && devices[i].instance == instance) return &devices[i];
    return NULL;
}

static void read_scenario(void) {
    device_count = process_count = fault_count = card_count = 0;
    said_count = -1;
    cuda = 13000;
    strcpy(driver, "580.00");
    const char *path = getenv("NVML_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return;
    char line[1024];
    while (fgets(line, sizeof line, file)) {
        char word[96] = "", kind[24] = "", text[96] = "";
        int a = 0, b = -1;
        u64 x, y;
        double seconds;
        struct device *d;
        if (sscanf(line, "driver %79s", driver) == 1) continue;
        if (sscanf(line, "cuda %d", &cuda) == 1) continue;
        if (sscanf(line, "count %d", &said_count) == 1) continue;
        if (sscanf(line, "gpu %95s %llu %llu %95[^\n]", word, &x, &y, text) == 4 && device_count < MOST) {
            d = &devices[device_count++];
            memset(d, 0, sizeof *d);
            d->card = card_count++; d->instance = -1; d->total = x << 20; d->driver = y << 20;
            strcpy(d->uuid, word); strcpy(d->model, text);
        } else if (sscanf(line, "mig %d %95s %llu", &a, word, &x) == 3 && device_count < MOST) {
            int instance = 0;
            while (find(a, instance)) instance++;
            d = &devices[device_count++];
            memset(d, 0, sizeof *d);
            d->card = a; d->instance = instance; d->total = x << 20;
            strcpy(d->uuid, word); strcpy(d->model, "NVIDIA Stub MIG 1g.10gb");
        } else if (sscanf(line, "process %d %llu %95s %23s %d", &a, &x, word, kind, &b) >= 4 && process_count < PROCESSES) {
            struct process *p = &processes[process_count++];
            p->card = a; p->pid = (unsigned)x; p->instance = b;
            p->bytes = !strcmp(word, "NA") ? ~0ULL : word[0] == '=' ? strtoull(word + 1, NULL, 10) : strtoull(word, NULL, 10) << 20;
            p->compute = strcmp(kind, "graphics") != 0; p->graphics = strcmp(kind, "compute") != 0;
        } else if (sscanf(line, "used %d %llu", &a, &x) == 2) { if ((d = find(a, -1))) d->extra = x << 20; }
        else if (sscanf(line, "memory %d %llu %llu", &a, &x, &y) == 3) { if ((d = find(a, -1))) { d->raw = 1; d->raw_total = x; d->raw_free = y; } }
        else if (sscanf(line, "utilisation %d %llu", &a, &x) == 2) { if ((d = find(a, -1))) d->rate = (int)x; }
        else if (sscanf(line, "worn %d", &a) == 1) { if ((d = find(a, -1))) d->worn = 1; }
        else if (sscanf(line, "partitioned %d", &a) == 1) { if ((d = find(a, -1))) d->partitioned = 1; }
        else if (sscanf(line, "many %d %llu", &a, &x) == 2) { if ((d = find(a, -1))) d->many = (unsigned)x; }
        else if (sscanf(line, "garbled %d %23s", &a, kind) == 2) { if ((d = find(a, -1))) { if (kind[0] == 'u') d->garbled_uuid = 1; else d->garbled_model = 1; } }
        else if (fault_count < MOST) {
            struct fault *f = &faults[fault_count];
            memset(f, 0, sizeof *f);
            f->card = -1;
            if (sscanf(line, "fail %79s %d %d", f->call, &f->code, &f->card) >= 2) fault_count++;
            else if (sscanf(line, "hang %79s %lf %d", f->call, &seconds, &f->card) >= 2) { f->hang = seconds; fault_count++; }
            else if (sscanf(line, "crash %79s", f->call) == 1) { f->crash = 1; fault_count++; }
        }
    }
    fclose(file);
}

/* What stands before every call: the scenario as it is now, and the faults planted for this call. */
static int before(const char *call, int card) {
    read_scenario();
    for (int i = 0; i < fault_count; i++) {
        struct fault *f = &faults[i];
        if (strcmp(f->call, call) || (f->card >= 0 && f->card != card)) continue;
        if (f->crash) abort();
        if (f->hang > 0) { struct timespec t = {(time_t)f->hang, (long)((f->hang - (double)(time_t)f->hang) * 1e9)}; nanosleep(&t, NULL); }
        if (f->code) return f->code;
    }
    return inits > 0 || !strcmp(call, "Init") ? SUCCESS : UNINITIALIZED;
}

#define ENTER(call) do { int code = before(call, -1); if (code) return code; } while (0)
/* Handles name a card and an instance, not a place in the file: they stay good while it changes. */
static int card_of(void *handle) { return (int)((long)handle / 1000) - 1; }
static int instance_of(void *handle) { return (int)((long)handle % 1000) - 1; }
static void *handle_of(int card, int instance) { return (void *)((long)(card + 1) * 1000 + instance + 1); }
#define ENTER_DEVICE(call) \
    int code_ = before(call, card_of(handle)); \
    if (code_) return code_; \
    struct device *d = find(card_of(handle), instance_of(handle)); \
    if (!d) return 15

int nvmlInitWithFlags(unsigned flags) { (void)flags; ENTER("Init"); inits++; return SUCCESS; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { ENTER("Shutdown"); inits--; return SUCCESS; }

const char *nvmlErrorString(int code) {
    static char text[40];
    switch (code) {
    case 1: return "Uninitialized";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 6: return "Not Found";
    case 9: return "Driver Not Loaded";
    case 13: return "Function Not Found";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    case 999: return "Unknown Error";
    }
    snprintf(text, sizeof text, "error %d", code);
    return text;
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) { ENTER("SystemGetDriverVersion"); snprintf(text, size, "%s", driver); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *number) { ENTER("SystemGetCudaDriverVersion"); *number = cuda; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { ENTER("DeviceGetCount"); *count = said_count >= 0 ? (unsigned)said_count : (unsigned)card_count; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    int code = before("DeviceGetHandleByIndex", (int)index);
    if (code) return code;
    if (!find((int)index, -1)) return INVALID;
    *handle = handle_of((int)index, -1);
    return SUCCESS;
}

static void garble(char *text, unsigned size) { memset(text, 0, size); memcpy(text, "\xff\xfe\x1b[31m\xc3", 8); }

int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    ENTER_DEVICE("DeviceGetUUID");
    if (d->garbled_uuid) garble(text, size); else snprintf(text, size, "%s", d->uuid);
    return SUCCESS;
}

int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    ENTER_DEVICE("DeviceGetName");
    if (d->garbled_model) garble(text, size); else snprintf(text, size, "%s", d->model);
    return SUCCESS;
}

static u64 used(struct device *d) {
    u64 sum = d->extra;
    for (int i = 0; i < process_count; i++)
        if (processes[i].card == d->card && processes[i].instance == d->instance && processes[i].bytes < d->total) sum += processes[i].bytes;
    return sum + d->driver > d->total ? d->total - d->driver : sum;
}

struct memory { u64 total, free, used; };
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory) {
    ENTER_DEVICE("DeviceGetMemoryInfo");
    memory->total = d->total; memory->used = used(d) + d->driver; memory->free = d->total - memory->used;
    if (d->raw) { memory->total = d->raw_total; memory->free = d->raw_free; }
    return SUCCESS;
}

#ifndef OLD
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *memory) {
    ENTER_DEVICE("DeviceGetMemoryInfo");
    memory->total = d->total; memory->reserved = d->driver; memory->used = used(d); memory->free = d->total - d->driver - memory->used;
    if (d->raw) { memory->total = d->raw_total; memory->free = d->raw_free; }
    return SUCCESS;
}
#endif

struct rates { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(void *handle, struct rates *rates) {
    ENTER_DEVICE("DeviceGetUtilizationRates");
    if (d->instance >= 0) return UNSUPPORTED;
    rates->gpu = (unsigned)d->rate; rates->memory = 0;
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    ENTER_DEVICE("DeviceGetRemappedRows");
    *corrected = *uncorrected = *pending = 0; *failed = (unsigned)d->worn;
    return SUCCESS;
}

struct info { unsigned pid; u64 bytes; unsigned gpu_instance, compute_instance; };
static int list(struct device *d, int graphics, unsigned *count, struct info *infos) {
    unsigned found = 0;
    for (int i = 0; i < process_count; i++) {
        struct process *p = &processes[i];
        if (p->card != d->card || p->instance != d->instance || !(graphics ? p->graphics : p->compute)) continue;
        if (infos && found < *count) infos[found] = (struct info){p->pid, p->bytes, ~0U, ~0U};
        found++;
    }
    if (!graphics && d->many) { *count = d->many; return TOO_SMALL; }
    int fits = found == 0 || (infos && found <= *count);
    *count = found;
    return fits ? SUCCESS : TOO_SMALL;
}

int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, struct info *infos) { ENTER_DEVICE("DeviceGetComputeRunningProcesses"); return list(d, 0, count, infos); }
int nvmlDeviceGetGraphicsRunningProcesses_v2(void *handle, unsigned *count, struct info *infos) { ENTER_DEVICE("DeviceGetGraphicsRunningProcesses"); return list(d, 1, count, infos); }
#ifndef OLD
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, struct info *infos) { ENTER_DEVICE("DeviceGetComputeRunningProcesses"); return list(d, 0, count, infos); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, struct info *infos) { ENTER_DEVICE("DeviceGetGraphicsRunningProcesses"); return list(d, 1, count, infos); }

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    ENTER_DEVICE("DeviceGetMigMode");
    *current = *pending = d->partitioned || find(d->card, 0) != NULL;
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) { ENTER_DEVICE("DeviceGetMaxMigDeviceCount"); *count = 7; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **instance) {
    ENTER_DEVICE("DeviceGetMigDeviceHandleByIndex");
    if (!find(d->card, (int)index)) return NOT_FOUND;
    *instance = handle_of(d->card, (int)index);
    return SUCCESS;
}
#endif

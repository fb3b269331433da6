/* A fake libnvidia-ml.so.1 for tests.

   It has NVML's symbols, struct layouts and return codes (nvml.h, versions as nvidia-ml-py calls them) and
   a small model of a GPU behind them. All state lives in one file, mapped shared, named by
   FAKE_NVML_STATE: every process that loads the library sees the same GPUs, and a killed process leaves
   them as it left them, which is what a real driver does.

   Model. Clock: the lock if there is one, else the maximum under load and the minimum when idle; a new
   lock takes effect `latency_us` later. Power: idle + load * (peak - idle) * (clock / maximum)^2, and the
   clock falls in steps of 15 MHz until power fits the limit. Energy integrates power; the counter shows
   its value at the last multiple of `counter_period_us`.

   Every value it reports is made up here; nothing is measured. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef long long i64;
typedef int ret_t;
typedef void *handle_t;

enum {
  OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15
};

#define FUNCTIONS(X) \
  X(nvmlInitWithFlags) X(nvmlShutdown) X(nvmlSystemGetDriverVersion) X(nvmlSystemGetNVMLVersion) \
  X(nvmlSystemGetCudaDriverVersion_v2) X(nvmlDeviceGetCount_v2) X(nvmlDeviceGetHandleByIndex_v2) \
  X(nvmlDeviceGetHandleByUUID) X(nvmlDeviceGetUUID) X(nvmlDeviceGetName) X(nvmlDeviceGetIndex) \
  X(nvmlDeviceGetPciInfo_v3) X(nvmlDeviceGetMemoryInfo) X(nvmlDeviceGetCudaComputeCapability) \
  X(nvmlDeviceGetNumGpuCores) X(nvmlDeviceGetClockInfo) X(nvmlDeviceGetMaxClockInfo) \
  X(nvmlDeviceGetSupportedMemoryClocks) X(nvmlDeviceGetSupportedGraphicsClocks) X(nvmlDeviceGetPowerUsage) \
  X(nvmlDeviceGetTotalEnergyConsumption) X(nvmlDeviceGetFieldValues) X(nvmlDeviceGetTemperature) \
  X(nvmlDeviceGetPowerManagementLimit) X(nvmlDeviceGetPowerManagementDefaultLimit) \
  X(nvmlDeviceGetPowerManagementLimitConstraints) X(nvmlDeviceGetEnforcedPowerLimit) \
  X(nvmlDeviceGetPersistenceMode) X(nvmlDeviceGetComputeMode) X(nvmlDeviceGetComputeRunningProcesses_v3) \
  X(nvmlDeviceGetCurrentClocksEventReasons) X(nvmlDeviceGetCurrentClocksThrottleReasons) \
  X(nvmlDeviceGetMigMode) X(nvmlDeviceGetMaxMigDeviceCount) X(nvmlDeviceGetMigDeviceHandleByIndex) \
  X(nvmlDeviceGetGpuInstanceId) X(nvmlDeviceGetComputeInstanceId) X(nvmlDeviceGetNvLinkState) \
  X(nvmlDeviceSetGpuLockedClocks) X(nvmlDeviceResetGpuLockedClocks) X(nvmlDeviceSetMemoryLockedClocks) \
  X(nvmlDeviceResetMemoryLockedClocks) X(nvmlDeviceSetPowerManagementLimit)

#define FIELDS(X) \
  X(permission) X(lost) X(lock_ignored) X(counter_stalled) X(counter_offset_mj) X(counter_period_us) \
  X(load_permille) X(latency_us) X(sm_lock_mhz) X(memory_lock_mhz) X(old_clock_mhz) X(switch_ns) \
  X(power_limit_mw) X(limit_min_mw) X(limit_max_mw) X(limit_default_mw) X(idle_mw) X(peak_mw) \
  X(energy_uj) X(visible_uj) X(last_ns) X(max_clock_mhz) X(min_clock_mhz) X(memory_clock_mhz) X(no_counter) \
  X(no_instant_power) X(no_power) X(mig_instances) X(num_links) X(model) X(pid0) X(pid1) X(pid2) \
  X(sm_sets) X(sm_resets) X(limit_sets)

#define AS_ENUM(name) FN_##name,
enum { FUNCTIONS(AS_ENUM) NUM_FUNCTIONS };
#define AS_FIELD(name) F_##name,
enum { FIELDS(AS_FIELD) NUM_FIELDS };
#define AS_TEXT(name) #name,
static const char *FUNCTION_NAMES[] = { FUNCTIONS(AS_TEXT) };
static const char *FIELD_NAMES[] = { FIELDS(AS_TEXT) };

#define MAX_GPUS 8
#define MAX_MIG 7
struct state {
  i64 num_gpus, calls[NUM_FUNCTIONS], fail_code[NUM_FUNCTIONS], fail_left[NUM_FUNCTIONS];
  i64 gpu[MAX_GPUS][NUM_FIELDS];
};

static struct state *S;
static int lock_fd = -1;
static char mapped_path[4096];
static pthread_mutex_t local = PTHREAD_MUTEX_INITIALIZER;
/* Handles are addresses in here: [gpu][0] is the GPU, [gpu][1 + i] its MIG instance i. */
static char handles[MAX_GPUS][1 + MAX_MIG];

static i64 now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* flock dies with its process, so a kill inside a call never leaves the others waiting. */
static void enter(void) { pthread_mutex_lock(&local); if (lock_fd >= 0) flock(lock_fd, LOCK_EX); }
static void leave(void) { if (lock_fd >= 0) flock(lock_fd, LOCK_UN); pthread_mutex_unlock(&local); }

static int attach(const char *path) {
  if (S && strcmp(path, mapped_path) == 0) return 0;
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(struct state)) != 0) return -1;
  void *at = mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) { close(fd); return -1; }
  if (S) { munmap(S, sizeof(struct state)); close(lock_fd); }
  S = at;
  lock_fd = fd;
  snprintf(mapped_path, sizeof mapped_path, "%s", path);
  return 0;
}

/* -- the model ------------------------------------------------------------------------------------ */

static double power_at(const i64 *g, double mhz) {
  double ratio = mhz / (double)g[F_max_clock_mhz];
  return g[F_idle_mw] + g[F_load_permille] / 1000.0 * (g[F_peak_mw] - g[F_idle_mw]) * ratio * ratio;
}

static i64 wanted_clock(const i64 *g) {
  if (g[F_sm_lock_mhz] && !g[F_lock_ignored]) return g[F_sm_lock_mhz];
  return g[F_load_permille] ? g[F_max_clock_mhz] : g[F_min_clock_mhz];
}

static i64 clock_at(const i64 *g, i64 t, int *capped) {
  i64 mhz = t < g[F_switch_ns] ? g[F_old_clock_mhz] : wanted_clock(g);
  *capped = 0;
  while (mhz > g[F_min_clock_mhz] && power_at(g, mhz) > g[F_power_limit_mw]) { mhz -= 15; *capped = 1; }
  return mhz;
}

static void advance_to(i64 *g, i64 t) {
  int capped;
  i64 from = g[F_last_ns];
  if (t <= from) return;
  double mw = power_at(g, clock_at(g, from, &capped));
  i64 period = g[F_counter_period_us] * 1000;
  i64 tick = t - t % period;
  if (tick > from) g[F_visible_uj] = g[F_energy_uj] + (i64)(mw * (tick - from) / 1e6);
  g[F_energy_uj] += (i64)(mw * (t - from) / 1e6); /* mW * ns = 1e-6 uJ */
  g[F_last_ns] = t;
}

static void advance(i64 *g, i64 now) {
  if (g[F_last_ns] < g[F_switch_ns] && g[F_switch_ns] < now) advance_to(g, g[F_switch_ns]);
  advance_to(g, now);
}

static void change_lock(i64 *g, i64 mhz) {
  int capped;
  i64 now = now_ns();
  advance(g, now);
  g[F_old_clock_mhz] = clock_at(g, now, &capped);
  g[F_sm_lock_mhz] = mhz;
  g[F_switch_ns] = now + g[F_latency_us] * 1000;
}

/* -- control, called by tests ---------------------------------------------------------------------- */

static int find(const char *const *names, int count, const char *name) {
  for (int i = 0; i < count; i++) if (strcmp(names[i], name) == 0) return i;
  return -1;
}

int fake_create(const char *path, int num_gpus) {
  pthread_mutex_lock(&local);
  int failed = num_gpus > MAX_GPUS || attach(path) != 0;
  pthread_mutex_unlock(&local);
  if (failed) return -1;
  enter();
  memset(S, 0, sizeof *S);
  S->num_gpus = num_gpus;
  for (int i = 0; i < num_gpus; i++) {
    i64 *g = S->gpu[i];
    g[F_permission] = 1; g[F_counter_period_us] = 100000; g[F_latency_us] = 6000;
    g[F_power_limit_mw] = g[F_limit_default_mw] = g[F_limit_max_mw] = 700000; g[F_limit_min_mw] = 200000;
    g[F_idle_mw] = 120000; g[F_peak_mw] = 680000; g[F_max_clock_mhz] = 1980; g[F_min_clock_mhz] = 345;
    g[F_memory_clock_mhz] = 3201; g[F_num_links] = 18; g[F_last_ns] = now_ns();
    g[F_energy_uj] = g[F_visible_uj] = 1000000000LL * (i + 1);
  }
  leave();
  return 0;
}

int fake_set(int gpu, const char *field, i64 value) {
  int f = find(FIELD_NAMES, NUM_FIELDS, field);
  if (!S || f < 0 || gpu < 0 || gpu >= S->num_gpus) return -1;
  enter();
  advance(S->gpu[gpu], now_ns());
  S->gpu[gpu][f] = value;
  leave();
  return 0;
}

i64 fake_get(int gpu, const char *field) {
  int f = find(FIELD_NAMES, NUM_FIELDS, field);
  if (!S || f < 0 || gpu < 0 || gpu >= S->num_gpus) return -1;
  enter();
  advance(S->gpu[gpu], now_ns());
  i64 value = S->gpu[gpu][f];
  leave();
  return value;
}

/* Make `function` return `code`, `times` times (-1: always). */
int fake_fail(const char *function, int code, i64 times) {
  int f = find(FUNCTION_NAMES, NUM_FUNCTIONS, function);
  if (!S || f < 0) return -1;
  enter();
  S->fail_code[f] = code;
  S->fail_left[f] = times;
  leave();
  return 0;
}

i64 fake_calls(const char *function) {
  int f = find(FUNCTION_NAMES, NUM_FUNCTIONS, function);
  return S && f >= 0 ? S->calls[f] : -1;
}

const char *fake_function(int index) { return index >= 0 && index < NUM_FUNCTIONS ? FUNCTION_NAMES[index] : NULL; }

/* -- NVML ------------------------------------------------------------------------------------------ */

/* Counts the call; returns the injected code, or OK to go on. The caller must leave() either way. */
static ret_t begin(int fn) {
  enter();
  if (!S) return UNINITIALIZED;
  S->calls[fn]++;
  if (S->fail_code[fn] && S->fail_left[fn]) {
    if (S->fail_left[fn] > 0) S->fail_left[fn]--;
    return (ret_t)S->fail_code[fn];
  }
  return OK;
}

static ret_t done(ret_t code) { leave(); return code; }

static int gpu_of(handle_t h, int *mig) {
  long at = (char *)h - &handles[0][0];
  if (at < 0 || at >= (long)sizeof handles) return -1;
  *mig = (int)(at % (1 + MAX_MIG)) - 1;
  return (int)(at / (1 + MAX_MIG));
}

#define BEGIN(name) ret_t code = begin(FN_##name); if (code) return done(code)
#define BEGIN_GPU(name) \
  BEGIN(name); \
  int mig = -1, n = gpu_of(h, &mig); (void)mig; \
  if (n < 0 || n >= S->num_gpus) return done(INVALID_ARGUMENT); \
  i64 *g = S->gpu[n]; i64 now = now_ns(); (void)now; \
  if (g[F_lost]) return done(GPU_IS_LOST); \
  advance(g, now)
#define NEED_PERMISSION if (!g[F_permission]) return done(NO_PERMISSION)
#define NO_MIG if (mig >= 0) return done(NOT_SUPPORTED)

ret_t nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  const char *path = getenv("FAKE_NVML_STATE");
  pthread_mutex_lock(&local);
  int failed = !path || attach(path) != 0;
  pthread_mutex_unlock(&local);
  if (failed) return 9; /* DRIVER_NOT_LOADED */
  BEGIN(nvmlInitWithFlags);
  return done(OK);
}
ret_t nvmlShutdown(void) { BEGIN(nvmlShutdown); return done(OK); }
const char *nvmlErrorString(ret_t code) { (void)code; return "an error made up for a test"; }

static ret_t text(char *out, unsigned size, const char *value) {
  if (strlen(value) >= size) return INSUFFICIENT_SIZE;
  strcpy(out, value);
  return OK;
}
ret_t nvmlSystemGetDriverVersion(char *v, unsigned n) { BEGIN(nvmlSystemGetDriverVersion); return done(text(v, n, "580.0.fake")); }
ret_t nvmlSystemGetNVMLVersion(char *v, unsigned n) { BEGIN(nvmlSystemGetNVMLVersion); return done(text(v, n, "13.580.fake")); }
ret_t nvmlSystemGetCudaDriverVersion_v2(int *v) { BEGIN(nvmlSystemGetCudaDriverVersion_v2); *v = 13000; return done(OK); }
ret_t nvmlDeviceGetCount_v2(unsigned *n) { BEGIN(nvmlDeviceGetCount_v2); *n = (unsigned)S->num_gpus; return done(OK); }

ret_t nvmlDeviceGetHandleByIndex_v2(unsigned i, handle_t *h) {
  BEGIN(nvmlDeviceGetHandleByIndex_v2);
  if (i >= S->num_gpus) return done(INVALID_ARGUMENT);
  *h = &handles[i][0];
  return done(OK);
}

static void uuid_of(int gpu, int mig, char *out) {
  if (mig < 0) snprintf(out, 96, "GPU-%d%d%d%d0000-fa4e-0000-0000-00000000000%d", gpu, gpu, gpu, gpu, gpu);
  else snprintf(out, 96, "MIG-%d%d000000-fa4e-0000-0000-00000000000%d", gpu, mig, mig);
}
ret_t nvmlDeviceGetHandleByUUID(const char *uuid, handle_t *h) {
  BEGIN(nvmlDeviceGetHandleByUUID);
  char mine[96];
  for (int i = 0; i < S->num_gpus; i++) {
    uuid_of(i, -1, mine);
    if (strcmp(mine, uuid) == 0) { *h = &handles[i][0]; return done(OK); }
  }
  return done(NOT_FOUND);
}
ret_t nvmlDeviceGetUUID(handle_t h, char *out, unsigned size) {
  BEGIN_GPU(nvmlDeviceGetUUID);
  char mine[96];
  uuid_of(n, mig, mine);
  return done(text(out, size, mine));
}
ret_t nvmlDeviceGetName(handle_t h, char *out, unsigned size) {
  BEGIN_GPU(nvmlDeviceGetName);
  return done(text(out, size, g[F_model] ? "Fake B" : "Fake A"));
}
ret_t nvmlDeviceGetIndex(handle_t h, unsigned *i) { BEGIN_GPU(nvmlDeviceGetIndex); *i = n; return done(OK); }

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
ret_t nvmlDeviceGetPciInfo_v3(handle_t h, struct pci *p) {
  BEGIN_GPU(nvmlDeviceGetPciInfo_v3);
  memset(p, 0, sizeof *p);
  p->bus = 0x10 + n;
  snprintf(p->bus_id, sizeof p->bus_id, "00000000:%02X:00.0", p->bus);
  snprintf(p->legacy, sizeof p->legacy, "0000:%02X:00.0", p->bus);
  return done(OK);
}
struct memory { unsigned long long total, free, used; };
ret_t nvmlDeviceGetMemoryInfo(handle_t h, struct memory *m) {
  BEGIN_GPU(nvmlDeviceGetMemoryInfo);
  m->total = 143771ULL << 20; m->used = 1ULL << 30; m->free = m->total - m->used;
  return done(OK);
}
ret_t nvmlDeviceGetCudaComputeCapability(handle_t h, int *major, int *minor) {
  BEGIN_GPU(nvmlDeviceGetCudaComputeCapability);
  *major = 9; *minor = 0;
  return done(OK);
}
ret_t nvmlDeviceGetNumGpuCores(handle_t h, unsigned *cores) { BEGIN_GPU(nvmlDeviceGetNumGpuCores); *cores = 132 * 128; return done(OK); }

ret_t nvmlDeviceGetClockInfo(handle_t h, unsigned type, unsigned *mhz) {
  BEGIN_GPU(nvmlDeviceGetClockInfo);
  int capped;
  if (type == 2) *mhz = (unsigned)(g[F_memory_lock_mhz] && !g[F_lock_ignored] ? g[F_memory_lock_mhz] : g[F_memory_clock_mhz]);
  else *mhz = (unsigned)clock_at(g, now, &capped);
  return done(OK);
}
ret_t nvmlDeviceGetMaxClockInfo(handle_t h, unsigned type, unsigned *mhz) {
  BEGIN_GPU(nvmlDeviceGetMaxClockInfo);
  *mhz = (unsigned)(type == 2 ? g[F_memory_clock_mhz] : g[F_max_clock_mhz]);
  return done(OK);
}
static ret_t list(unsigned *count, unsigned *out, unsigned first, unsigned last, unsigned step) {
  unsigned have = (first - last) / step + 1, room = *count;
  *count = have;
  if (!out || room < have) return INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < have; i++) out[i] = first - i * step;
  return OK;
}
ret_t nvmlDeviceGetSupportedMemoryClocks(handle_t h, unsigned *count, unsigned *out) {
  BEGIN_GPU(nvmlDeviceGetSupportedMemoryClocks);
  return done(list(count, out, 3201, 2201, 1000));
}
ret_t nvmlDeviceGetSupportedGraphicsClocks(handle_t h, unsigned mem, unsigned *count, unsigned *out) {
  BEGIN_GPU(nvmlDeviceGetSupportedGraphicsClocks);
  if (mem != 3201 && mem != 2201) return done(NOT_FOUND);
  return done(list(count, out, (unsigned)g[F_max_clock_mhz], (unsigned)g[F_min_clock_mhz], 15));
}
static unsigned power_now(i64 *g, i64 now) { int capped; return (unsigned)power_at(g, clock_at(g, now, &capped)); }
ret_t nvmlDeviceGetPowerUsage(handle_t h, unsigned *mw) {
  BEGIN_GPU(nvmlDeviceGetPowerUsage);
  if (g[F_no_power]) return done(NOT_SUPPORTED);
  *mw = power_now(g, now);
  return done(OK);
}
static i64 counter(const i64 *g) { return (g[F_counter_stalled] ? g[F_counter_stalled] : g[F_visible_uj] / 1000) + g[F_counter_offset_mj]; }
ret_t nvmlDeviceGetTotalEnergyConsumption(handle_t h, unsigned long long *mj) {
  BEGIN_GPU(nvmlDeviceGetTotalEnergyConsumption);
  NO_MIG;
  if (g[F_no_counter]) return done(NOT_SUPPORTED);
  *mj = (unsigned long long)counter(g);
  return done(OK);
}
struct field { unsigned id, scope; i64 timestamp, latency_us; int type, code; union { double d; unsigned u; unsigned long long ull; } value; };
ret_t nvmlDeviceGetFieldValues(handle_t h, int count, struct field *f) {
  BEGIN_GPU(nvmlDeviceGetFieldValues);
  for (int i = 0; i < count; i++) {
    f[i].code = OK; f[i].type = 1; f[i].value.ull = 0;
    if ((f[i].id == 186 && !g[F_no_instant_power] && !g[F_no_power]) || (f[i].id == 185 && !g[F_no_power])) f[i].value.u = power_now(g, now);
    else if (f[i].id == 83 && !g[F_no_counter]) { f[i].type = 3; f[i].value.ull = (unsigned long long)counter(g); }
    else f[i].code = NOT_SUPPORTED;
  }
  return done(OK);
}
ret_t nvmlDeviceGetTemperature(handle_t h, unsigned sensor, unsigned *c) { BEGIN_GPU(nvmlDeviceGetTemperature); (void)sensor; *c = 45; return done(OK); }
ret_t nvmlDeviceGetPowerManagementLimit(handle_t h, unsigned *mw) { BEGIN_GPU(nvmlDeviceGetPowerManagementLimit); *mw = (unsigned)g[F_power_limit_mw]; return done(OK); }
ret_t nvmlDeviceGetEnforcedPowerLimit(handle_t h, unsigned *mw) { BEGIN_GPU(nvmlDeviceGetEnforcedPowerLimit); *mw = (unsigned)g[F_power_limit_mw]; return done(OK); }
ret_t nvmlDeviceGetPowerManagementDefaultLimit(handle_t h, unsigned *mw) { BEGIN_GPU(nvmlDeviceGetPowerManagementDefaultLimit); *mw = (unsigned)g[F_limit_default_mw]; return done(OK); }
ret_t nvmlDeviceGetPowerManagementLimitConstraints(handle_t h, unsigned *lo, unsigned *hi) {
  BEGIN_GPU(nvmlDeviceGetPowerManagementLimitConstraints);
  *lo = (unsigned)g[F_limit_min_mw]; *hi = (unsigned)g[F_limit_max_mw];
  return done(OK);
}
ret_t nvmlDeviceGetPersistenceMode(handle_t h, unsigned *on) { BEGIN_GPU(nvmlDeviceGetPersistenceMode); *on = 1; return done(OK); }
ret_t nvmlDeviceGetComputeMode(handle_t h, unsigned *mode) { BEGIN_GPU(nvmlDeviceGetComputeMode); *mode = 0; return done(OK); }
struct process { unsigned pid; unsigned long long used; unsigned gi, ci; };
ret_t nvmlDeviceGetComputeRunningProcesses_v3(handle_t h, unsigned *count, struct process *out) {
  BEGIN_GPU(nvmlDeviceGetComputeRunningProcesses_v3);
  unsigned have = 0, room = *count;
  for (int f = F_pid0; f <= F_pid2; f++) have += g[f] != 0;
  *count = have;
  if (!have) return done(OK);
  if (!out || room < have) return done(INSUFFICIENT_SIZE);
  have = 0;
  for (int f = F_pid0; f <= F_pid2; f++) if (g[f]) { out[have].pid = (unsigned)g[f]; out[have].used = 1 << 30; out[have].gi = out[have].ci = ~0u; have++; }
  return done(OK);
}
static unsigned long long reasons(const i64 *g, i64 now) {
  int capped;
  clock_at(g, now, &capped);
  return (g[F_load_permille] ? 0 : 1) | (capped ? 4 : 0);
}
ret_t nvmlDeviceGetCurrentClocksEventReasons(handle_t h, unsigned long long *r) { BEGIN_GPU(nvmlDeviceGetCurrentClocksEventReasons); *r = reasons(g, now); return done(OK); }
ret_t nvmlDeviceGetCurrentClocksThrottleReasons(handle_t h, unsigned long long *r) { BEGIN_GPU(nvmlDeviceGetCurrentClocksThrottleReasons); *r = reasons(g, now); return done(OK); }

ret_t nvmlDeviceGetMigMode(handle_t h, unsigned *current, unsigned *pending) {
  BEGIN_GPU(nvmlDeviceGetMigMode);
  *current = *pending = g[F_mig_instances] > 0;
  return done(OK);
}
ret_t nvmlDeviceGetMaxMigDeviceCount(handle_t h, unsigned *count) { BEGIN_GPU(nvmlDeviceGetMaxMigDeviceCount); *count = MAX_MIG; return done(OK); }
ret_t nvmlDeviceGetMigDeviceHandleByIndex(handle_t h, unsigned i, handle_t *out) {
  BEGIN_GPU(nvmlDeviceGetMigDeviceHandleByIndex);
  if (i >= g[F_mig_instances]) return done(NOT_FOUND);
  *out = &handles[n][1 + i];
  return done(OK);
}
ret_t nvmlDeviceGetGpuInstanceId(handle_t h, unsigned *id) { BEGIN_GPU(nvmlDeviceGetGpuInstanceId); if (mig < 0) return done(INVALID_ARGUMENT); *id = 7 + mig; return done(OK); }
ret_t nvmlDeviceGetComputeInstanceId(handle_t h, unsigned *id) { BEGIN_GPU(nvmlDeviceGetComputeInstanceId); if (mig < 0) return done(INVALID_ARGUMENT); *id = 0; return done(OK); }
ret_t nvmlDeviceGetNvLinkState(handle_t h, unsigned link, unsigned *on) {
  BEGIN_GPU(nvmlDeviceGetNvLinkState);
  if (link >= g[F_num_links]) return done(INVALID_ARGUMENT);
  *on = 1;
  return done(OK);
}

ret_t nvmlDeviceSetGpuLockedClocks(handle_t h, unsigned lo, unsigned hi) {
  BEGIN_GPU(nvmlDeviceSetGpuLockedClocks);
  NO_MIG; NEED_PERMISSION;
  if (lo > hi || hi > g[F_max_clock_mhz] || hi < g[F_min_clock_mhz]) return done(INVALID_ARGUMENT);
  change_lock(g, hi);
  g[F_sm_sets]++;
  return done(OK);
}
ret_t nvmlDeviceResetGpuLockedClocks(handle_t h) {
  BEGIN_GPU(nvmlDeviceResetGpuLockedClocks);
  NO_MIG; NEED_PERMISSION;
  change_lock(g, 0);
  g[F_sm_resets]++;
  return done(OK);
}
ret_t nvmlDeviceSetMemoryLockedClocks(handle_t h, unsigned lo, unsigned hi) {
  BEGIN_GPU(nvmlDeviceSetMemoryLockedClocks);
  NO_MIG; NEED_PERMISSION;
  if (lo > hi) return done(INVALID_ARGUMENT);
  g[F_memory_lock_mhz] = hi;
  return done(OK);
}
ret_t nvmlDeviceResetMemoryLockedClocks(handle_t h) { BEGIN_GPU(nvmlDeviceResetMemoryLockedClocks); NO_MIG; NEED_PERMISSION; g[F_memory_lock_mhz] = 0; return done(OK); }
ret_t nvmlDeviceSetPowerManagementLimit(handle_t h, unsigned mw) {
  BEGIN_GPU(nvmlDeviceSetPowerManagementLimit);
  NO_MIG; NEED_PERMISSION;
  if (mw < g[F_limit_min_mw] || mw > g[F_limit_max_mw]) return done(INVALID_ARGUMENT);
  if (!g[F_lock_ignored]) g[F_power_limit_mw] = mw;
  g[F_limit_sets]++;
  return done(OK);
}

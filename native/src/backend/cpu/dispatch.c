/* dispatch.c: which instruction sets are compiled in and usable on this CPU. llm_isas.h, which CMake
 * writes, is ISA(name) of each that is compiled in, the best last. */
#include <stdatomic.h>
#include <string.h>

#include "backend/kernels.h"
#include "base/os_thread.h"

#if defined(__x86_64__) || defined(_M_X64)
#define LLM_X86 1
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__) && defined(_WIN32)
#include <windows.h>
#endif

typedef struct cpu_features {
    /* The whole set that our kernels of that name need. */
    int scalar, avx2, avxvnni, avx512, amx, asimd, neon, i8mm;
    char names[256];
} cpu_features;

static void add_name(cpu_features *f, const char *name) {
    size_t at = strlen(f->names), n = strlen(name);
    if (at + n + 2 > sizeof f->names) return;
    if (at) f->names[at++] = ' ';
    memcpy(f->names + at, name, n + 1);
}

#if defined(LLM_X86)

/* XCR0: which register files the system saves on a context switch. */
static uint32_t saved_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

typedef struct feature_bit {
    const char *name;
    int leaf, reg, bit; /* reg: 0 eax, 1 ebx, 2 ecx, 3 edx; leaf 7 is sub-leaf 0, 71 sub-leaf 1 */
} feature_bit;

static const feature_bit bits_avx[] = {
    {"avx", 1, 2, 28}, {"fma", 1, 2, 12}, {"f16c", 1, 2, 29}, {"avx2", 7, 1, 5}};
static const feature_bit bits_avx512[] = {{"avx512f", 7, 1, 16},
                                          {"avx512dq", 7, 1, 17},
                                          {"avx512bw", 7, 1, 30},
                                          {"avx512vl", 7, 1, 31},
                                          {"avx512vnni", 7, 2, 11}};
static const feature_bit bits_avxvnni[] = {{"avxvnni", 71, 0, 4}};
static const feature_bit bits_other[] = {{"avx512bf16", 71, 0, 5}};
static const feature_bit bits_amx_bf16[] = {{"amx_bf16", 7, 3, 22}};
static const feature_bit bits_amx[] = {{"amx_tile", 7, 3, 24}, {"amx_int8", 7, 3, 25}};

static int has(const feature_bit *b) {
    uint32_t r[4] = {0, 0, 0, 0}, top = (uint32_t)__get_cpuid_max(0, NULL);
    uint32_t leaf = b->leaf == 71 ? 7 : (uint32_t)b->leaf;
    if (leaf > top) return 0;
    __cpuid_count(leaf, b->leaf == 71 ? 1 : 0, r[0], r[1], r[2], r[3]);
    return r[b->reg] >> b->bit & 1;
}

static int has_all(cpu_features *f, const feature_bit *bits, size_t n) {
    int all = 1;
    for (size_t i = 0; i < n; i++) {
        if (has(&bits[i]))
            add_name(f, bits[i].name);
        else
            all = 0;
    }
    return all;
}

/* Linux lets a process use tiles only after it asked; asking again changes nothing. */
static int tiles_allowed(void) {
#if defined(__linux__)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return 0;
#endif
}

static void detect(cpu_features *f) {
    static const feature_bit osxsave = {"osxsave", 1, 2, 27};
    uint32_t saved = has(&osxsave) ? saved_state() : 0;
    if ((saved & 0x6) != 0x6) return; /* xmm, ymm */
    f->avx2 = has_all(f, bits_avx, sizeof bits_avx / sizeof *bits_avx);
    f->avxvnni = f->avx2 & has_all(f, bits_avxvnni, sizeof bits_avxvnni / sizeof *bits_avxvnni);
    if ((saved & 0xe6) == 0xe6) /* and opmask, both zmm parts */
        f->avx512 = f->avx2 & has_all(f, bits_avx512, sizeof bits_avx512 / sizeof *bits_avx512);
    has_all(f, bits_other, sizeof bits_other / sizeof *bits_other);
    if (!has(&bits_amx[0]) || (saved & 0x60000) != 0x60000 || !tiles_allowed()) return;
    has_all(f, bits_amx_bf16, sizeof bits_amx_bf16 / sizeof *bits_amx_bf16);
    f->amx = has_all(f, bits_amx, sizeof bits_amx / sizeof *bits_amx) && f->avx512;
}

#elif defined(__aarch64__)

/* The system is asked: user code cannot read the registers that tell. Bits are Linux's. */
typedef struct arm_feature {
    const char *name; /* as in /proc/cpuinfo */
    int second;       /* in AT_HWCAP2 */
    int bit;
    int windows; /* PF_ARM_* of IsProcessorFeaturePresent */
    const char *apple;
} arm_feature;

static const arm_feature arm_dot = {"asimddp", 0, 20, 43, "hw.optional.arm.FEAT_DotProd"};
static const arm_feature arm_i8mm = {"i8mm", 1, 13, 66, "hw.optional.arm.FEAT_I8MM"};

static int has(const arm_feature *a) {
#if defined(__linux__)
    return getauxval(a->second ? AT_HWCAP2 : AT_HWCAP) >> a->bit & 1;
#elif defined(__APPLE__)
    int value = 0;
    size_t size = sizeof value;
    return !sysctlbyname(a->apple, &value, &size, NULL, 0) && value;
#elif defined(_WIN32)
    return IsProcessorFeaturePresent((DWORD)a->windows) != 0;
#else
    return 0;
#endif
}

static void detect(cpu_features *f) {
    add_name(f, "asimd");
    f->asimd = 1; /* part of the base */
    f->neon = has(&arm_dot);
    f->i8mm = f->neon && has(&arm_i8mm);
    if (f->neon) add_name(f, arm_dot.name);
    if (f->i8mm) add_name(f, arm_i8mm.name);
}

#else

static void detect(cpu_features *f) { (void)f; }

#endif

#define ISA(isa) extern const llm_kernels llm_kernels_##isa;
#include "llm_isas.h"
#undef ISA

#define ISA(isa) +1
enum {
    MAX_ISAS = 0
#include "llm_isas.h"
};
#undef ISA

/* What this CPU and this system allow, asked once. */
typedef struct usable_isas {
    atomic_int state; /* one of the three below */
    int32_t n;
    const llm_kernels *tables[MAX_ISAS]; /* best last */
    cpu_features features;
} usable_isas;

enum { UNKNOWN, BEING_ASKED, KNOWN };

static void ask(usable_isas *u) {
    cpu_features *f = &u->features;
    f->scalar = 1;
    detect(f);
#define ISA(isa)                                                                                   \
    if (f->isa) u->tables[u->n++] = &llm_kernels_##isa;
#include "llm_isas.h"
#undef ISA
}

static const usable_isas *usable(void) {
    static usable_isas once;
    if (atomic_load_explicit(&once.state, memory_order_acquire) == KNOWN) return &once;
    int expected = UNKNOWN;
    if (atomic_compare_exchange_strong(&once.state, &expected, BEING_ASKED)) {
        ask(&once);
        atomic_store_explicit(&once.state, KNOWN, memory_order_release);
    }
    while (atomic_load_explicit(&once.state, memory_order_acquire) != KNOWN) llm_os_yield();
    return &once;
}

int32_t llm_n_isas(void) { return usable()->n; }

const char *llm_isa_name(int32_t i) {
    const usable_isas *u = usable();
    return i >= 0 && i < u->n ? u->tables[i]->isa : NULL;
}

const char *llm_isa_features(void) { return usable()->features.names; }

const llm_kernels *llm_kernels_of(const char *isa) {
    const usable_isas *u = usable();
    if (!isa) return u->n ? u->tables[u->n - 1] : NULL;
    for (int32_t i = 0; i < u->n; i++)
        if (!strcmp(u->tables[i]->isa, isa)) return u->tables[i];
    return NULL;
}

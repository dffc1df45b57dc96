/* localllm.h: the one door to the native engine.
 *
 * The Python binding reads this file (and its parts, localllm_kv.h and localllm_sampling.h) as its
 * cffi cdef, so it holds only plain declarations and integer defines. Every call that can fail
 * returns an llm_status and fills `err` (or NULL). Nothing here exits, prints or reads the
 * environment. Strings are UTF-8.
 * Objects are not thread-safe unless a comment says so; one step runs at a time per llm_exec.
 */
#ifndef LOCALLLM_H
#define LOCALLLM_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LLM_ARITHMETIC_VERSION 2 /* raised whenever any logit bit may change */
#define LLM_BLOCK_TOKENS 32      /* tokens in one KV block */
#define LLM_ERROR_BYTES 2048
#define LLM_MAX_DIMS 4
#define LLM_MAX_GROUPS 4 /* layer groups (full attention, or one window size) in one model */

typedef enum llm_status {
    LLM_OK = 0,
    LLM_E_IO = 1,          /* the system refused a file */
    LLM_E_FORMAT = 2,      /* the file breaks the GGUF rules */
    LLM_E_UNSUPPORTED = 3, /* valid, but not something this build runs */
    LLM_E_ARGUMENT = 4,    /* the caller passed a value out of range */
    LLM_E_MEMORY = 5,      /* an allocation was refused */
    LLM_E_CANCELLED = 6    /* the cancel flag was seen */
} llm_status;

typedef struct llm_error {
    llm_status status;
    char message[2048]; /* what failed, the value, the limit */
} llm_error;

/* ---- GGUF files ------------------------------------------------------------------------- */

typedef struct llm_gguf llm_gguf; /* read-only after open: safe to share between threads */

/* Metadata value types, numbered as in the GGUF specification. */
/* clang-format off */
enum {
    LLM_GGUF_U8 = 0, LLM_GGUF_I8 = 1, LLM_GGUF_U16 = 2, LLM_GGUF_I16 = 3, LLM_GGUF_U32 = 4,
    LLM_GGUF_I32 = 5, LLM_GGUF_F32 = 6, LLM_GGUF_BOOL = 7, LLM_GGUF_STRING = 8,
    LLM_GGUF_ARRAY = 9, LLM_GGUF_U64 = 10, LLM_GGUF_I64 = 11, LLM_GGUF_F64 = 12
};
/* clang-format on */

typedef struct llm_gguf_value {
    const char *key; /* not NUL-terminated */
    size_t key_bytes;
    int32_t type;         /* LLM_GGUF_* */
    int32_t element_type; /* of an array, else equal to type */
    uint64_t count;       /* array elements, else 1 */
    const uint8_t *data;  /* little-endian, maybe unaligned: the value, or a first element */
    uint64_t data_bytes;  /* a string array: the whole encoded run of (u64 length, bytes) */
} llm_gguf_value;

typedef struct llm_tensor_info {
    const char *name; /* NUL-terminated */
    int32_t type;     /* GGML type number, see llm_format_info */
    int32_t n_dims;
    int64_t dims[4]; /* dims[0] is the contiguous one; unused ones are 1 */
    const uint8_t *data;
    uint64_t n_bytes;
    int32_t part; /* which file of a split set */
} llm_tensor_info;

/* Opens a file, or all parts of a split set of which any part is named; checks everything. Of
 * llm_gguf_open_header the data may be absent: to look at and to plan for. */
llm_status llm_gguf_open(const char *path, llm_gguf **out, llm_error *err);
llm_status llm_gguf_open_header(const char *path, llm_gguf **out, llm_error *err);
void llm_gguf_close(llm_gguf *g);
int32_t llm_gguf_version(const llm_gguf *g);
int32_t llm_gguf_n_parts(const llm_gguf *g);
uint64_t llm_gguf_file_bytes(const llm_gguf *g); /* all parts */
int64_t llm_gguf_n_values(const llm_gguf *g);
int64_t llm_gguf_find(const llm_gguf *g, const char *key); /* index, or -1 */
llm_status llm_gguf_value_at(const llm_gguf *g, int64_t i, llm_gguf_value *out);
/* Copies the string array at value i: offsets [count + 1], bytes [offsets[count]].
 * With both NULL it only writes the byte total to n_bytes. */
llm_status llm_gguf_strings(const llm_gguf *g, int64_t i, int64_t *offsets, char *bytes,
                            int64_t *n_bytes, llm_error *err);
int64_t llm_gguf_n_tensors(const llm_gguf *g);
int64_t llm_gguf_find_tensor(const llm_gguf *g, const char *name); /* index, or -1 */
llm_status llm_gguf_tensor_at(const llm_gguf *g, int64_t i, llm_tensor_info *out);
/* After a look at data of values or tensors: LLM_E_IO if a file was cut short, and zeros were seen. */
llm_status llm_gguf_check(const llm_gguf *g, llm_error *err);
/* Steps fail once a mapped file was written to. The caller has compared its content: part 0 may have
 * been written to at this moment, nanoseconds since 1970. No step may run meanwhile. */
void llm_gguf_expect_written(llm_gguf *g, int64_t written_ns);

/* ---- Quantization formats --------------------------------------------------------------- */

typedef struct llm_format_info {
    const char *name; /* "Q4_K" */
    int32_t type;     /* GGML type number */
    int32_t block_elements;
    int32_t block_bytes;
    int32_t native; /* 1: this build loads and runs it; 0: only its size is known */
} llm_format_info;

int32_t llm_n_formats(void);
llm_status llm_format_at(int32_t i, llm_format_info *out);
llm_status llm_format_find(int32_t type, llm_format_info *out); /* LLM_E_UNSUPPORTED if unknown */
/* n elements (a multiple of block_elements) of raw blocks to f32: the scalar reference. */
llm_status llm_dequantize(int32_t type, const uint8_t *src, uint64_t src_bytes, float *dst,
                          int64_t n, llm_error *err);

/* ---- The machine ------------------------------------------------------------------------ */

typedef struct llm_machine {
    const char *isa; /* the best instruction set here, such as avx512: a folder of backend/cpu */
    int32_t n_cpus; /* CPUs that this process may use (affinity) */
    double cpu_quota; /* cgroup CPU limit in CPUs, 0 when there is none */
    int32_t n_threads; /* the default: min of both, the quota rounded, at least 1 */
    uint64_t memory_bytes; /* cgroup limit or physical, whichever is smaller */
    uint64_t free_bytes;
} llm_machine;

void llm_machine_probe(llm_machine *out);
int32_t llm_n_isas(void); /* the instruction sets compiled in and usable here */
const char *llm_isa_name(int32_t i); /* best last */
const char *llm_isa_features(void); /* what cpuid or hwcap said, space-separated */
const char *llm_source(void); /* the commit this was built from, +dirty if changed, or a version */

typedef struct llm_threads llm_threads; /* persistent workers; the caller is thread 0 */

/* n_threads 0: as many as the machine allows. */
llm_status llm_threads_create(int32_t n_threads, llm_threads **out, llm_error *err);
void llm_threads_destroy(llm_threads *t);
int32_t llm_threads_count(const llm_threads *t);
/* Roofs of this machine: GB/s of a n-thread read of n_bytes, Gop/s of the ISA's int8 dot product and
 * of its f32 multiply-add, kept in registers (one multiply and one add are two operations). */
llm_status llm_roof_bandwidth(llm_threads *t, uint64_t n_bytes, double *gb_per_s, llm_error *err);
llm_status llm_roof_int8(llm_threads *t, const char *isa, double *gop_per_s, llm_error *err);
llm_status llm_roof_f32(llm_threads *t, const char *isa, double *gop_per_s, llm_error *err);

/* ---- Models ----------------------------------------------------------------------------- */

typedef struct llm_model llm_model;

typedef struct llm_model_params {
    const char *isa; /* NULL: the best */
    int32_t raw_weights; /* 1: compute from the mapped file, no panels (same bits) */
    uint64_t panel_limit; /* bytes; larger panels count as raw_weights; 0: by free memory */
    int32_t *progress; /* NULL, or permille of load, written as it goes */
    const int32_t *cancel; /* NULL, or a flag that ends the load with LLM_E_CANCELLED */
} llm_model_params;

typedef struct llm_model_info {
    const char *architecture;
    const char *isa; /* the one whose kernels this model runs */
    int32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_vocab, n_ctx_train;
    int32_t n_groups;
    int32_t group_window[4]; /* 0: full attention; else the window in tokens */
    int32_t group_n_layers[4];
    uint64_t n_params;
    uint64_t weight_bytes; /* held in memory by this model (panels, norms) */
    uint64_t mapped_bytes; /* read from the mapped file at run time; 0: there are panels */
    int32_t was_refused; /* 1: mapped because the system refused the memory for panels */
} llm_model_info;

/* The gguf must outlive the model. All missing or misshapen tensors are named in one error. */
llm_status llm_model_load(const llm_gguf *g, llm_threads *t, const llm_model_params *params,
                          llm_model **out, llm_error *err);
/* A model without weights, for info, block and exec bytes. load_bytes: held until a load ends. */
llm_status llm_model_plan(const llm_gguf *g, int32_t n_threads, const llm_model_params *params,
                          uint64_t *load_bytes, llm_model **out, llm_error *err);
void llm_model_free(llm_model *m);
void llm_model_get_info(const llm_model *m, llm_model_info *out);

/* ---- Steps ------------------------------------------------------------------------------ */

typedef struct llm_exec llm_exec;
typedef struct llm_kv_pool llm_kv_pool; /* localllm_kv.h */
enum { LLM_KV_F16 = 0, LLM_KV_Q8_0 = 1 };
typedef struct llm_sampler llm_sampler; /* localllm_sampling.h */
typedef struct llm_logprobs llm_logprobs; /* localllm_sampling.h */

typedef struct llm_exec_params {
    int32_t max_tokens; /* most tokens in one step */
    int32_t max_sequences; /* most sequences in one step */
    int32_t n_sampled; /* only ids below this are sampled: the tokenizer's size; 0: all */
    const int32_t *cancel; /* NULL, or a flag polled between layers */
    uint32_t *progress; /* NULL, or a counter that rises several times a second in a step, however
                           long that takes; any thread may read it */
} llm_exec_params;

/* One step: n_seqs sequences, each with new tokens at consecutive positions. Flat arrays. */
typedef struct llm_batch {
    int32_t n_seqs;
    int32_t n_tokens; /* sum of seq_n_tokens */
    const int32_t *tokens; /* [n_tokens], sequence after sequence */
    const int32_t *seq_n_tokens; /* [n_seqs], each >= 1 */
    const int32_t *seq_first_pos; /* [n_seqs] position of the first new token */
    const int32_t *block_tables; /* all tables, one after another */
    const int32_t *table_offset; /* [n_groups * n_seqs + 1]: table of (group, seq) starts at
                                    [group * n_seqs + seq]; entry b holds the tokens at positions
                                    32 b .. 32 b + 31; -1 where a window has left the block */
    const int32_t *seq_sample; /* [n_seqs] 1: sample a token after the last new one */
    llm_sampler *const *seq_samplers; /* [n_seqs] each once, for n_sampled ids; NULL: greedy */
    const int32_t *next_tokens; /* NULL, or [n_tokens]: a token whose log probability behind this
                                   one is wanted, -1: none */
    const llm_logprobs *next_logprobs; /* rows [n_tokens]: of them; others stay as they are */
} llm_batch;

llm_status llm_exec_create(const llm_model *m, llm_kv_pool *p, llm_threads *t,
                           const llm_exec_params *params, llm_exec **out, llm_error *err);
void llm_exec_free(llm_exec *e);
/* What another engine asks between the parts of a step, as ggml does: 1 if flag[0], to be cancelled,
 * is set; flag[1] counts the calls. */
int32_t llm_step_poll(void *flag); /* int32_t [2] */
uint64_t llm_exec_scratch_bytes(const llm_exec *e);
llm_status llm_exec_bytes(const llm_model *m, int32_t kv_type, int32_t n_threads,
                          const llm_exec_params *params, uint64_t *n_bytes, llm_error *err);
/* out_tokens [n_seqs]: the sampled token, -1 where none was asked for; its sampler has accepted it.
 * logits: NULL, or [n_tokens][n_vocab] when all_logits, else [n_seqs][n_vocab] (rows of sampled
 * sequences). logprobs: NULL, or rows [n_seqs]. After an error no sampler has changed.
 * logits and the batch's next_tokens exclude each other. */
llm_status llm_exec_step(llm_exec *e, const llm_batch *b, int32_t all_logits, int32_t *out_tokens,
                         float *logits, const llm_logprobs *logprobs, llm_error *err);
/* k decode steps of the same sequences: b holds one token each, block tables cover pos + k.
 * out_tokens [k][n_seqs], logprobs rows [k][n_seqs]; n_done: steps finished (fewer than k after a
 * cancel). A sequence that samples one of stop_tokens [n_stop] ends the run after that step. */
llm_status llm_exec_decode(llm_exec *e, const llm_batch *b, int32_t k, const int32_t *stop_tokens,
                           int32_t n_stop, int32_t *out_tokens, const llm_logprobs *logprobs,
                           int32_t *n_done, llm_error *err);

/* ---- One op, for tests and benchmarks --------------------------------------------------- */

typedef struct llm_op_weight llm_op_weight;

/* A matrix [n_rows][n_cols] of raw blocks, laid out as the model would hold it. */
llm_status llm_op_weight_create(int32_t type, const uint8_t *src, uint64_t src_bytes,
                                int64_t n_rows, int64_t n_cols, int32_t raw_weights,
                                llm_op_weight **out, llm_error *err);
void llm_op_weight_free(llm_op_weight *w);
/* y [n][n_rows] = x [n][n_cols] times the matrix, n_reps times; seconds: the shortest. */
llm_status llm_op_matmul(llm_threads *t, const char *isa, const llm_op_weight *w, const float *x,
                         int32_t n, float *y, int32_t n_reps, double *seconds, llm_error *err);

#ifdef __cplusplus
}
#endif
#endif

/* The first bytes of a file: is it GGUF, and if not, what is it? */
#include <inttypes.h>
#include <string.h>

#include "gguf/part.h"

#define HEADER_BYTES 24

typedef struct signature {
    const char *bytes;
    uint32_t n_bytes;
    const char *looks_like;
} signature;

static const signature SIGNATURES[] = {
    {"version https://git-lfs", 23, "a Git LFS pointer (fetch the real file with 'git lfs pull')"},
    {"PK\x03\x04", 4, "a zip archive (a PyTorch checkpoint or a Python wheel is one)"},
    {"PK\x05\x06", 4, "an empty zip archive"},
    {"lmgg", 4, "a GGML file of 2023, older than GGUF (convert it or get a GGUF file)"},
    {"fmgg", 4, "a GGMF file of 2023, older than GGUF (convert it or get a GGUF file)"},
    {"tjgg", 4, "a GGJT file of 2023, older than GGUF (convert it or get a GGUF file)"},
    {"\x1f\x8b", 2, "a gzip archive (unpack it first)"},
    {"\x28\xb5\x2f\xfd", 4, "a zstd archive (unpack it first)"},
    {"\xfd"
     "7zXZ",
     5, "an xz archive (unpack it first)"},
    {"7z\xbc\xaf\x27\x1c", 6, "a 7z archive (unpack it first)"},
    {"BZh", 3, "a bzip2 archive (unpack it first)"},
    {"\x80\x02", 2, "a Python pickle (an old PyTorch checkpoint is one)"},
    {"\x89HDF\r\n\x1a\n", 8, "an HDF5 file"},
    {"%PDF-", 5, "a PDF document"},
    {"#!", 2, "a script"},
};

static bool equal_ignoring_case(const uint8_t *p, const char *lower, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((p[i] >= 'A' && p[i] <= 'Z' ? p[i] + 32 : p[i]) != (uint8_t)lower[i]) return false;
    return true;
}

static bool starts_with_tag(const uint8_t *p, uint64_t n, const char *tag) {
    return n >= strlen(tag) && equal_ignoring_case(p, tag, strlen(tag));
}

static const char *text_kind(const uint8_t *p, uint64_t n) {
    if (n >= 3 && memcmp(p, "\xef\xbb\xbf", 3) == 0) p += 3, n -= 3; /* a byte order mark */
    while (n && (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n')) p++, n--;
    if (starts_with_tag(p, n, "<!doctype") || starts_with_tag(p, n, "<html")
        || starts_with_tag(p, n, "<head") || starts_with_tag(p, n, "<!--"))
        return "an HTML page (the download brought a web page, not the file)";
    if (starts_with_tag(p, n, "<?xml")) return "an XML document (often a download server's error)";
    if (n && (*p == '{' || *p == '[')) return "JSON text";
    return NULL;
}

static const char *what_it_is(const uint8_t *p, uint64_t n) {
    for (size_t i = 0; i < sizeof SIGNATURES / sizeof *SIGNATURES; i++)
        if (n >= SIGNATURES[i].n_bytes
            && memcmp(p, SIGNATURES[i].bytes, SIGNATURES[i].n_bytes) == 0)
            return SIGNATURES[i].looks_like;
    /* safetensors: the length of a JSON header as u64, then that header */
    if (n >= 10 && p[8] == '{' && llm_load_u64(p) >= 2 && llm_load_u64(p) < UINT32_MAX)
        return "a safetensors file (convert it to GGUF first)";
    const char *text = text_kind(p, n);
    if (text) return text;
    size_t n_zero = 0;
    while (n_zero < n && n_zero < HEADER_BYTES && p[n_zero] == 0) n_zero++;
    if (n_zero == n || n_zero == HEADER_BYTES)
        return "zeros (an unfinished download that reserved its space looks so)";
    return NULL;
}

static llm_status check_version(const llm_gguf_part *part, llm_error *err) {
    uint32_t version = llm_load_u32(part->bytes + 4);
    if (version == 2 || version == 3) return LLM_OK;
    if (version == 1)
        return llm_gguf_fail(part, err, LLM_E_UNSUPPORTED,
                             "GGUF version 1, of August 2023; this build reads versions 2 and 3 "
                             "(get a newer file of this model)");
    /* A version under 65536 whose bytes are turned round. */
    if (version && (version & 0xffff) == 0)
        return llm_gguf_fail(part, err, LLM_E_UNSUPPORTED,
                             "a big-endian GGUF file (version bytes %02x %02x %02x %02x); this "
                             "build reads little-endian ones",
                             part->bytes[4], part->bytes[5], part->bytes[6], part->bytes[7]);
    return llm_gguf_fail(part, err, LLM_E_UNSUPPORTED,
                         "GGUF version %" PRIu32 "; this build reads versions 2 and 3", version);
}

llm_status llm_gguf_read_header(llm_gguf_part *part, llm_error *err) {
    const uint8_t *p = part->bytes;
    uint64_t n = part->n_bytes;
    if (n >= 4 && memcmp(p, "FUGG", 4) == 0)
        return llm_gguf_fail(part, err, LLM_E_UNSUPPORTED,
                             "a big-endian GGUF file (its magic is 'FUGG'); this build reads "
                             "little-endian ones");
    if (n < 4 || memcmp(p, "GGUF", 4) != 0) {
        const char *looks_like = what_it_is(p, n);
        if (looks_like)
            return llm_gguf_fail(part, err, LLM_E_FORMAT,
                                 "not a GGUF file; its %" PRIu64 " bytes look like %s", n,
                                 looks_like);
        return llm_gguf_fail(part, err, LLM_E_FORMAT,
                             "not a GGUF file: the magic is %s, not 'GGUF' (%" PRIu64 " bytes)",
                             llm_quote(p, n < 4 ? n : 4).text, n);
    }
    if (n >= 8) {
        llm_status status = check_version(part, err);
        if (status != LLM_OK) return status;
    }
    if (n < HEADER_BYTES)
        return llm_gguf_fail(part, err, LLM_E_FORMAT,
                             "the file ends inside its header: %" PRIu64 " bytes of %d", n,
                             HEADER_BYTES);
    part->version = (int32_t)llm_load_u32(p + 4);
    part->n_tensors_stated = llm_load_u64(p + 8);
    part->n_values_stated = llm_load_u64(p + 16);
    part->at = HEADER_BYTES;
    return LLM_OK;
}

/* product.h: matrix products whose panels the threads take in turns, and what follows on their rows. */
#ifndef LLM_PRODUCT_H
#define LLM_PRODUCT_H

#include "exec/exec.h"

#define LLM_MAX_PRODUCTS 3

typedef struct llm_product {
    const llm_weight *w;
    const float *bias; /* [n_rows] or NULL */
    float *y; /* [n][n_rows] */
    int64_t group_rows; /* rows of one group, below */
} llm_product;

/* Products of the same activations. Their output rows may fall into groups (a kv head, or the
 * inputs of one block of the next product): group g of product i is the rows
 * [g * group_rows, (g + 1) * group_rows). The thread that ends the last open row of a group goes on
 * with `follow` for it, while the others take what is left: nobody waits, and the rows are still in
 * that core's cache. */
typedef struct llm_products {
    const llm_product *of;
    int32_t n;
    void (*follow)(void *context, int32_t group);
    void *context;
} llm_products;

/* Counters of one use of llm_multiply, all 0 before any thread is in it. */
typedef struct llm_turns {
    atomic_int *next; /* the next run of panels */
    atomic_int *rows_done; /* [groups], only with follow */
} llm_turns;

/* The next run of `total` panels or tokens that threads take in turns: a share of what is left, so
 * that the last runs are short and all threads end together, also those whose CPU somebody else
 * uses. few: tokens of a product. False when nothing is left. */
bool llm_take_run(atomic_int *next, int64_t total, int32_t n_threads, bool few, int64_t *begin,
                  int64_t *end);
/* Rows of group g in all products: what its rows_done ends at. */
int32_t llm_group_rows(const llm_products *p, int32_t group);
/* This thread's part of the products. */
void llm_multiply(llm_exec *e, const llm_acts *a, const llm_products *p, llm_turns turns,
                  int32_t thread);
/* Quantizes inputs [begin, end) of row `row` of a->x for all kinds that the products read. */
void llm_quantize_row(const llm_kernels *k, llm_acts *a, int32_t row, int64_t begin, int64_t end,
                      const llm_products *p);

#endif

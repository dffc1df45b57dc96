/* rope.c: the angle frequencies of rotary embeddings.
 *
 * Plain: base^(-2i / n_rot). Linear extension divides every frequency by the factor. YaRN
 * (arXiv 2309.00071) keeps the fast ones, divides the slow ones, blends between two dimensions
 * where a period fits 32 times and once into the original context, and scales the magnitude by
 * 1 + 0.1 ln(factor). Llama 3.1 files carry their own per-pair divisors (rope_freqs.weight).
 */
#include <math.h>
#include <stdlib.h>

#include "base/status.h"
#include "model/model.h"

#define YARN_BETA_FAST 32.0
#define YARN_BETA_SLOW 1.0
static const double TWO_PI = 6.283185307179586;

/* The (fractional) dimension whose period fits `turns` times into the original context. */
static double yarn_dimension(const llm_hparams *h, double turns) {
    return h->n_rot * log(h->rope_original_ctx / (turns * TWO_PI)) / (2.0 * log(h->rope_base));
}

static void fill_plain(double *frequency, int32_t n_rot, double base) {
    for (int32_t i = 0; i < n_rot / 2; i++) frequency[i] = pow(base, -2.0 * i / n_rot);
}

llm_status llm_rope_init(llm_model *m, const float *factors, llm_error *err) {
    const llm_hparams *h = &m->h;
    for (int32_t kind = 0; kind < 2; kind++) {
        m->rope[kind].frequency = malloc(sizeof(double) * (size_t)(h->n_rot / 2));
        m->rope[kind].magnitude = h->rope_attn_factor;
        if (!m->rope[kind].frequency) return llm_fail(err, LLM_E_MEMORY, "no memory for rope");
    }
    fill_plain(m->rope[1].frequency, h->n_rot, h->window ? (double)h->rope_window_base : 1.0);
    double *f = m->rope[0].frequency;
    fill_plain(f, h->n_rot, (double)h->rope_base);
    double low = 0.0, high = 0.0;
    if (h->rope_yarn) {
        low = fmax(0.0, floor(yarn_dimension(h, YARN_BETA_FAST)));
        high = fmin(h->n_rot - 1.0, ceil(yarn_dimension(h, YARN_BETA_SLOW)));
        m->rope[0].magnitude *= (float)(1.0 + 0.1 * log((double)h->rope_factor));
    }
    for (int32_t i = 0; i < h->n_rot / 2; i++) {
        if (factors) f[i] /= (double)factors[i];
        double slow = f[i] / (double)h->rope_factor;
        double keep = 0.0;
        if (h->rope_yarn) {
            double ramp = (i - low) / fmax(0.001, high - low);
            keep = 1.0 - fmin(1.0, fmax(0.0, ramp));
        }
        f[i] = slow * (1.0 - keep) + f[i] * keep;
    }
    return LLM_OK;
}

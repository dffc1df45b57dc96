#include <math.h>

#include "sampling/portable_math.h"
#include "sampling/sample.h"
#include "sampling/sampler.h"

#define COLDEST 1e-30 /* below this the likeliest token is all that is left */

/* Dynamic temperature (kalomaze 2023, "entropy-based dynamic temperature"): between T - range, at
 * least 0, and T + range, by the entropy of the candidates over its maximum log n, to a power. */
static double dynamic(const llm_sampler_params *p, llm_candidates *c) {
    double t = (double)p->temperature, range = (double)p->dynatemp_range;
    if (c->n < 2) return t;
    llm_sums sums = llm_weigh(c);
    double entropy = llm_portable_log(sums.weight) - sums.x / sums.weight;
    double share = entropy / llm_portable_log(c->n), low = t > range ? t - range : 0;
    share = share < 1 ? share : 1; /* a uniform distribution may round to more */
    /* Below that it is a single token's distribution, and the logarithm of 0 has no value. */
    double scaled = share > 1e-300 ? llm_portable_power(share, (double)p->dynatemp_exponent) : 0;
    return low + (t + range - low) * scaled;
}

void llm_apply_temperature(llm_sampler *s, llm_candidates *c, int32_t position) {
    (void)position;
    double t = (double)s->p.temperature;
    if (s->p.dynatemp_range > 0.0F) {
        llm_candidates_list(c, -INFINITY);
        t = dynamic(&s->p, c);
        if (t < COLDEST && c->n > 1) llm_keep_only(c, llm_largest(c->logit, 0, c->n));
    }
    c->temperature = t < COLDEST ? COLDEST : t;
}

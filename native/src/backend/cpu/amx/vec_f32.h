/* vec_f32.h (amx): the vectors of AVX-512. */
#include "../avx512/vec_f32.h"

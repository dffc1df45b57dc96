/* vec_f32.h (avxvnni): the vectors of AVX2. */
#include "../avx2/vec_f32.h"

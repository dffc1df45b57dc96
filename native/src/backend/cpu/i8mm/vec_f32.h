/* vec_f32.h (i8mm): the vectors of neon. */
#include "../neon/vec_f32.h"

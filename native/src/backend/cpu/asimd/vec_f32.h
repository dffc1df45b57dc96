/* vec_f32.h (asimd): the vectors of neon. */
#include "../neon/vec_f32.h"

# The compiled module, generated from native/include/localllm.h.
from typing import Any

ffi: Any
lib: Any

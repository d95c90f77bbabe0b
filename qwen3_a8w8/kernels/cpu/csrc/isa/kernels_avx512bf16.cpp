#define QW_TABLE kernels_avx512bf16
#include "table.h"

#define QW_TABLE kernels_avx2
#include "table.h"

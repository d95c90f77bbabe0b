#define QW_TABLE kernels_avx512vnni
#include "table.h"

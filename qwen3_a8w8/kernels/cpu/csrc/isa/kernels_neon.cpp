#define QW_TABLE kernels_neon
#include "table.h"

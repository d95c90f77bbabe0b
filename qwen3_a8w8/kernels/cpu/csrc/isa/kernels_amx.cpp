#define QW_TABLE kernels_amx
#include "table.h"

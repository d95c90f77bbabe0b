#define QW_TABLE kernels_portable
#include "table.h"

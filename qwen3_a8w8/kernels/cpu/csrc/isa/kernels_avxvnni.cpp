#define QW_TABLE kernels_avxvnni
#include "table.h"

#ifndef DELTASTORE_MERGE_H
#define DELTASTORE_MERGE_H

#include "streams.h"

ds_fault ds_ulp_merge(const ds_streams *inputs, size_t count, ds_ulp *out);

#endif

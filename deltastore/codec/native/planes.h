#ifndef DELTASTORE_PLANES_H
#define DELTASTORE_PLANES_H

#include "common.h"

void ds_split(const uint8_t *lanes, size_t count, size_t width, unsigned left, uint8_t *planes);
void ds_merge(const uint8_t *planes, size_t count, size_t width, unsigned left, uint8_t *lanes);

#endif

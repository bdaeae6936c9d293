/* Functions of TVM's in a library, and what the last fault was. */

#include "hosted.h"

__attribute__((visibility("default"))) const char *edgeinfer_fault(void) { return message; }

/* Regions of a graph as custom operators of ONNX Runtime.

   Only what is used of ONNX Runtime's C interface is declared here. It is a table of functions
   whose places never change: version N of it begins with version N-1. TVM's functions take tensors
   as DLPack describes them. A file named by REGIONS describes the regions that are linked in. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hosted.h"

enum { ORT_VERSION = 17, ORT_FAIL = 1 };

enum { /* places in ONNX Runtime's table */
  CREATE_STATUS = 0,
  CREATE_DOMAIN = 26,
  ADD_TO_DOMAIN = 27,
  ADD_DOMAIN = 28,
  TENSOR_DATA = 51,
  ELEMENT_COUNT = 64,
  TYPE_AND_SHAPE = 65,
  GET_INPUT = 90,
  GET_OUTPUT = 91,
  RELEASE_TYPE_AND_SHAPE = 99,
  PARALLEL_FOR = 274
};

typedef void *status;
typedef const void *const *table;

typedef struct {
  table (*get_api)(uint32_t version);
  const char *(*version)(void);
} api_base;

typedef struct custom_op custom_op;
struct custom_op {
  uint32_t version;
  void *(*create)(const custom_op *, table, const void *);
  const char *(*name)(const custom_op *);
  const char *(*provider)(const custom_op *);
  int (*input_type)(const custom_op *, size_t);
  size_t (*inputs)(const custom_op *);
  int (*output_type)(const custom_op *, size_t);
  size_t (*outputs)(const custom_op *);
  void (*compute)(void *, void *);
  void (*destroy)(void *);
  int (*input_kind)(const custom_op *, size_t);
  int (*output_kind)(const custom_op *, size_t);
  int (*input_memory)(const custom_op *, size_t);
  int (*least_inputs)(const custom_op *);
  int (*same_inputs)(const custom_op *);
  int (*least_outputs)(const custom_op *);
  int (*same_outputs)(const custom_op *);
  status (*create_2)(const custom_op *, table, const void *, void **);
  status (*compute_2)(void *, void *);
  status (*infer)(const custom_op *, void *);
  int (*first_version)(const custom_op *);
  int (*last_version)(const custom_op *);
  size_t (*may_inplace)(int **, int **);
  void (*release_inplace)(int *, int *);
  size_t (*aliases)(int **, int **);
  void (*release_aliases)(int *, int *);
};

typedef struct { /* DLTensor */
  void *data;
  int32_t device, device_index;
  int32_t rank;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t offset;
} dl_tensor;

typedef struct { /* an argument of a TVM function */
  int32_t kind;
  uint32_t zero;
  void *pointer;
} argument;

enum { DL_CPU = 1, TENSOR_POINTER = 7 };

typedef int (*function)(void *, const argument *, int32_t, argument *);

typedef struct {
  int onnx_type, code, bits, rank;
  int64_t size;
  int64_t *shape;
} tensor;

typedef struct {
  const char *name;
  function run;
  int inputs, weights, outputs;
  const tensor *tensors; /* inputs, outputs, weights, as the function takes them */
} region;

#include REGIONS /* defines `regions`, `count` and `domain` */

typedef struct {
  custom_op op; /* first, so that a pointer to it is one to the whole */
  const region *about;
} registered;

static registered ops[COUNT];
static table api;
static void *shared_domain;
static __thread void *context;

#define CALL(place, type) ((type)api[place])

static status failed(const char *text) {
  return CALL(CREATE_STATUS, status (*)(int, const char *))(ORT_FAIL, text);
}

/* ---- what TVM's code calls, beside hosted.h */

typedef struct {
  void *handle;
  int32_t tasks;
} group;

typedef struct {
  int (*body)(int, group *, void *);
  void *closure;
  group tasks;
  int fault;
} loop;

static void one_task(void *data, size_t task) {
  loop *all = data;
  if (all->body((int)task, &all->tasks, all->closure)) __atomic_store_n(&all->fault, 1, __ATOMIC_RELAXED);
}

static int in_parallel(int (*body)(int, group *, void *), void *closure, int wanted) {
  loop all = {body, closure, {NULL, wanted > 0 ? wanted : TASKS}, 0};
  status fault = CALL(PARALLEL_FOR, status (*)(void *, void (*)(void *, size_t), size_t, size_t, void *))(
      context, one_task, (size_t)all.tasks.tasks, 0, &all);
  return fault != NULL || all.fault ? -1 : 0;
}

int (*__TVMBackendParallelLaunch)(int (*)(int, group *, void *), void *, int) = in_parallel;

/* ---- what ONNX Runtime calls */

static const region *about(const custom_op *op) { return ((const registered *)op)->about; }
static const char *name(const custom_op *op) { return about(op)->name; }
static const char *provider(const custom_op *op) { return (void)op, (const char *)NULL; }
static size_t inputs(const custom_op *op) { return (size_t)(about(op)->inputs + about(op)->weights); }
static size_t outputs(const custom_op *op) { return (size_t)about(op)->outputs; }
static int required(const custom_op *op, size_t index) { return (void)op, (void)index, 0; }
static int one(const custom_op *op) { return (void)op, 1; }

static const tensor *of_input(const region *r, size_t index) {
  size_t given = (size_t)r->inputs;
  return r->tensors + (index < given ? index : index + (size_t)r->outputs);
}

static int input_type(const custom_op *op, size_t index) { return of_input(about(op), index)->onnx_type; }
static int output_type(const custom_op *op, size_t index) {
  return about(op)->tensors[(size_t)about(op)->inputs + index].onnx_type;
}

static status create(const custom_op *op, table given, const void *info, void **kernel) {
  (void)given, (void)info;
  *kernel = (void *)about(op);
  return NULL;
}

static void destroy(void *kernel) { (void)kernel; }

static void describe(dl_tensor *made, argument *place, const tensor *t, void *data) {
  *made = (dl_tensor){data, DL_CPU, 0, t->rank, (uint8_t)t->code, (uint8_t)t->bits, 1, t->shape, NULL, 0};
  *place = (argument){TENSOR_POINTER, 0, made};
}

/* Memory is read and written by sizes that were fixed when the code was made. */
static status check_size(const void *value, const tensor *t) {
  void *shape = NULL;
  size_t found = 0;
  status fault = CALL(TYPE_AND_SHAPE, status (*)(const void *, void **))(value, &shape);
  if (fault) return fault;
  fault = CALL(ELEMENT_COUNT, status (*)(const void *, size_t *))(shape, &found);
  CALL(RELEASE_TYPE_AND_SHAPE, void (*)(void *))(shape);
  if (!fault && found != (size_t)t->size) return failed("an input has another size than the region was made for");
  return fault;
}

static status compute(void *kernel, void *given) {
  const region *r = kernel;
  int all = r->inputs + r->outputs + r->weights;
  dl_tensor tensors[all];
  argument arguments[all], result = {0, 0, NULL};
  status fault;
  for (int i = 0; i < all; i++) {
    const tensor *t = r->tensors + i;
    int is_output = i >= r->inputs && i < r->inputs + r->outputs;
    void *value = NULL, *data = NULL;
    if (is_output)
      fault = CALL(GET_OUTPUT, status (*)(void *, size_t, const int64_t *, size_t, void **))(
          given, (size_t)(i - r->inputs), t->shape, (size_t)t->rank, &value);
    else
      fault = CALL(GET_INPUT, status (*)(const void *, size_t, void **))(
          given, (size_t)(i < r->inputs ? i : i - r->outputs), &value);
    if (!fault && !is_output) fault = check_size(value, t);
    if (!fault) fault = CALL(TENSOR_DATA, status (*)(void *, void **))(value, &data);
    if (fault) return fault;
    describe(tensors + i, arguments + i, t, data);
  }
  void *outer = context;
  context = given;
  message[0] = 0;
  int code = r->run(NULL, arguments, all, &result);
  context = outer;
  return code ? failed(message[0] ? message : "a region failed") : NULL;
}

static const custom_op common = {
  .version = ORT_VERSION,
  .name = name,
  .provider = provider,
  .input_type = input_type,
  .inputs = inputs,
  .output_type = output_type,
  .outputs = outputs,
  .destroy = destroy,
  .input_kind = required,
  .output_kind = required,
  .input_memory = required,
  .least_inputs = one,
  .same_inputs = one,
  .least_outputs = one,
  .same_outputs = one,
  .create_2 = create,
  .compute_2 = compute,
  .first_version = one,
  .last_version = one,
};

static status prepare(table found) {
  if (shared_domain) return NULL;
  api = found;
  void *made = NULL;
  status fault = CALL(CREATE_DOMAIN, status (*)(const char *, void **))(DOMAIN, &made);
  for (int i = 0; !fault && i < COUNT; i++) {
    ops[i] = (registered){common, regions + i};
    fault = CALL(ADD_TO_DOMAIN, status (*)(void *, const custom_op *))(made, &ops[i].op);
  }
  if (!fault) shared_domain = made;
  return fault;
}

/* Called for each session that is opened, by any thread. */
__attribute__((visibility("default"))) status RegisterCustomOps(void *options, const api_base *base) {
  static char taken;
  table found = base->get_api(ORT_VERSION);
  if (!found) {
    status (*make)(int, const char *) = (status(*)(int, const char *))base->get_api(1)[CREATE_STATUS];
    return make(ORT_FAIL, "regions need ONNX Runtime 1.17 or newer");
  }
  while (__atomic_test_and_set(&taken, __ATOMIC_ACQUIRE)) {
  }
  status fault = prepare(found);
  __atomic_clear(&taken, __ATOMIC_RELEASE);
  return fault ? fault : CALL(ADD_DOMAIN, status (*)(void *, void *))(options, shared_domain);
}

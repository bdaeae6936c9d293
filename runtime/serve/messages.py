"""Messages of the Open Inference Protocol over gRPC, made from a table when they are needed.

They live in a pool of their own: a client's copies in the same process do not meet them.

Source: ``open_inference_grpc.proto``; Triton's ``grpc_service.proto`` and ``model_config.proto``
for its extensions; ``grpc.health.v1``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

PACKAGE = "inference"
SERVICE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"

_TABLE = """
ServerLiveRequest
ServerLiveResponse live:bool=1
ServerReadyRequest
ServerReadyResponse ready:bool=1
ModelReadyRequest name:string=1 version:string=2
ModelReadyResponse ready:bool=1
ServerMetadataRequest
ServerMetadataResponse name:string=1 version:string=2 extensions:*string=3
ModelMetadataRequest name:string=1 version:string=2
TensorMetadata name:string=1 datatype:string=2 shape:*int64=3
ModelMetadataResponse name:string=1 versions:*string=2 platform:string=3
 inputs:*TensorMetadata=4 outputs:*TensorMetadata=5
InferParameter bool_param:bool=1? int64_param:int64=2? string_param:string=3?
 double_param:double=4? uint64_param:uint64=5?
InferTensorContents bool_contents:*bool=1 int_contents:*int32=2 int64_contents:*int64=3
 uint_contents:*uint32=4 uint64_contents:*uint64=5 fp32_contents:*float=6 fp64_contents:*double=7
 bytes_contents:*bytes=8
InferInputTensor name:string=1 datatype:string=2 shape:*int64=3 parameters:%InferParameter=4
 contents:InferTensorContents=5
InferRequestedOutputTensor name:string=1 parameters:%InferParameter=2
InferOutputTensor name:string=1 datatype:string=2 shape:*int64=3 parameters:%InferParameter=4
 contents:InferTensorContents=5
ModelInferRequest model_name:string=1 model_version:string=2 id:string=3
 parameters:%InferParameter=4 inputs:*InferInputTensor=5 outputs:*InferRequestedOutputTensor=6
 raw_input_contents:*bytes=7
ModelInferResponse model_name:string=1 model_version:string=2 id:string=3
 parameters:%InferParameter=4 outputs:*InferOutputTensor=5 raw_output_contents:*bytes=6
ModelStreamInferResponse error_message:string=1 infer_response:ModelInferResponse=2
ModelInput name:string=1 data_type:DataType=2 dims:*int64=4
ModelOutput name:string=1 data_type:DataType=2 dims:*int64=3
State input_name:string=1 output_name:string=2 data_type:DataType=3 dims:*int64=4
ModelDynamicBatching preferred_batch_size:*int32=1
ModelSequenceBatching max_sequence_idle_microseconds:uint64=1 state:*State=5
ModelConfig name:string=1 platform:string=2 backend:string=17 max_batch_size:int32=4
 input:*ModelInput=5 output:*ModelOutput=6 dynamic_batching:ModelDynamicBatching=11
 sequence_batching:ModelSequenceBatching=13
ModelConfigRequest name:string=1 version:string=2
ModelConfigResponse config:ModelConfig=1
StatisticDuration count:uint64=1 ns:uint64=2
InferStatistics success:StatisticDuration=1 fail:StatisticDuration=2 queue:StatisticDuration=3
 compute_infer:StatisticDuration=5
ModelStatistics name:string=1 version:string=2 inference_count:uint64=4 execution_count:uint64=5
 inference_stats:InferStatistics=6
ModelStatisticsRequest name:string=1 version:string=2
ModelStatisticsResponse model_stats:*ModelStatistics=1
RepositoryIndexRequest repository_name:string=1 ready:bool=2
ModelIndex name:string=1 version:string=2 state:string=3 reason:string=4
RepositoryIndexResponse models:*ModelIndex=1
ModelRepositoryParameter bool_param:bool=1? int64_param:int64=2? string_param:string=3?
 bytes_param:bytes=4?
RepositoryModelLoadRequest repository_name:string=1 model_name:string=2
 parameters:%ModelRepositoryParameter=3
RepositoryModelLoadResponse
RepositoryModelUnloadRequest repository_name:string=1 model_name:string=2
 parameters:%ModelRepositoryParameter=3
RepositoryModelUnloadResponse
RegionStatus name:string=1 key:string=2 offset:uint64=3 byte_size:uint64=4
SystemSharedMemoryStatusRequest name:string=1
SystemSharedMemoryStatusResponse regions:%RegionStatus=1
SystemSharedMemoryRegisterRequest name:string=1 key:string=2 offset:uint64=3 byte_size:uint64=4
SystemSharedMemoryRegisterResponse
SystemSharedMemoryUnregisterRequest name:string=1
SystemSharedMemoryUnregisterResponse
HealthCheckRequest service:string=1
HealthCheckResponse status:int32=1
"""
"""A message a line (blank at the start: the line before goes on). ``*`` many, ``%`` a map from
texts, ``?`` one of."""

_TYPES = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "STRING", "BF16"),
)
"""Types of a model's configuration, from 1 on."""


@cache
def messages() -> dict[str, Any]:
    """Return the classes by name.

    Raises:
        ImportError: protobuf is not installed.
    """
    from google.protobuf import (  # type: ignore[import-untyped]
        descriptor_pb2,
        descriptor_pool,
        message_factory,
    )

    file = descriptor_pb2.FileDescriptorProto(
        name="edgeinfer/inference.proto", package=PACKAGE, syntax="proto3"
    )
    kinds = file.enum_type.add(name="DataType")
    for number, name in enumerate(("INVALID", *_TYPES)):
        kinds.value.add(name=f"TYPE_{name}", number=number)
    lines = [line.split() for line in _TABLE.replace("\n ", " ").split("\n") if line]
    for name, *fields in lines:
        message = file.message_type.add(name=name)
        for field in fields:
            _add(message, field)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found = {name: pool.FindMessageTypeByName(f"{PACKAGE}.{name}") for name, *_ in lines}
    return {name: message_factory.GetMessageClass(each) for name, each in found.items()}


def _add(message: Any, given: str) -> None:
    """Add a field, as ``name:type=number``."""
    name, _, rest = given.partition(":")
    kind, _, number = rest.rstrip("?").partition("=")
    field = message.field.add(name=name, number=int(number), label=1)
    if kind[0] in "*%":
        field.label = 3
    if kind[0] == "%":
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        _add(entry, "key:string=1")
        _add(entry, f"value:{kind[1:]}=2")
        kind = f"{message.name}.{entry.name}"
    kind = kind.lstrip("*")
    if kind[0].islower():
        field.type = getattr(field, f"TYPE_{kind.upper()}")
    else:
        field.type = field.TYPE_ENUM if kind == "DataType" else field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{kind}"
    if rest.endswith("?"):
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0

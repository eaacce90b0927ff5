from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExportLogsServiceRequest(_message.Message):
    __slots__ = ("resource_logs",)
    RESOURCE_LOGS_FIELD_NUMBER: _ClassVar[int]
    resource_logs: _containers.RepeatedCompositeFieldContainer[ResourceLogs]
    def __init__(self, resource_logs: _Optional[_Iterable[_Union[ResourceLogs, _Mapping]]] = ...) -> None: ...

class ExportLogsServiceResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResourceLogs(_message.Message):
    __slots__ = ("scope_logs",)
    SCOPE_LOGS_FIELD_NUMBER: _ClassVar[int]
    scope_logs: _containers.RepeatedCompositeFieldContainer[ScopeLogs]
    def __init__(self, scope_logs: _Optional[_Iterable[_Union[ScopeLogs, _Mapping]]] = ...) -> None: ...

class ScopeLogs(_message.Message):
    __slots__ = ("log_records",)
    LOG_RECORDS_FIELD_NUMBER: _ClassVar[int]
    log_records: _containers.RepeatedCompositeFieldContainer[LogRecord]
    def __init__(self, log_records: _Optional[_Iterable[_Union[LogRecord, _Mapping]]] = ...) -> None: ...

class LogRecord(_message.Message):
    __slots__ = ("body",)
    BODY_FIELD_NUMBER: _ClassVar[int]
    body: AnyValue
    def __init__(self, body: _Optional[_Union[AnyValue, _Mapping]] = ...) -> None: ...

class AnyValue(_message.Message):
    __slots__ = ("string_value",)
    STRING_VALUE_FIELD_NUMBER: _ClassVar[int]
    string_value: bytes
    def __init__(self, string_value: _Optional[bytes] = ...) -> None: ...

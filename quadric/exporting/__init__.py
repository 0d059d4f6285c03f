"""Networks as files for other runtimes: ONNX, torch.export, and int8.

Every file is checked before it gets its name: it is read back, run at several batch sizes and
compared with the model it came from. A difference beyond the tolerance is an error, and leaves no
file.
"""

from quadric.exporting.export_report import ExportReport as ExportReport
from quadric.exporting.int8 import Int8Report as Int8Report
from quadric.exporting.int8 import export_int8 as export_int8
from quadric.exporting.onnx_file import export_onnx as export_onnx
from quadric.exporting.program import export_torch as export_torch
from quadric.exporting.timing import latencies as latencies

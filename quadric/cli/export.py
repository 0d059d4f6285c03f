"""The command `quadric export`."""

from __future__ import annotations

from pathlib import Path

from typer import Argument, Option

from quadric.cli import options
from quadric.errors import InputError
from quadric.support.extras import require
from quadric.support.progress import say
from quadric.support.writing import check_writable


def export(
    source: Path = Argument(help="A run directory, or a file of quadric.save with --model."),
    out: Path = Option(..., "--out", "-o", help="The file: .onnx, or .pt2 of torch.export."),
    model: str | None = Option(
        None, help="The network of a file: of quadric.models, or module:factory."
    ),
    input: options.Inputs = None,
    set_: options.NetworkOptions = None,
    int8: bool = Option(False, "--int8", help="Quantize a convolutional network of a run."),
    calibration: int = Option(256, help="Training inputs that set the ranges of int8."),
    max_drop: float = Option(0.02, help="Loss of accuracy in int8 above which nothing is written."),
    opset: int = Option(20, help="Version of ONNX's operators."),
    data_dir: options.DataDir = None,
    code: options.Code = None,
    threads: int = Option(1, help="Threads while latency is measured.", min=1),
    json_file: options.JsonFile = None,
) -> None:
    """Write a trained network for ONNX Runtime or torch.export, checked, and time it beside linear.

    The file is run at several batch sizes and compared with the network; if they differ, nothing is
    written. BatchNorm is folded into the layers. Sizes and latencies are shown beside those of the
    same network with linear neurons. A translation run becomes two files, NAME-encoder.onnx and
    NAME-step.onnx, one step of the decoder, and its tokenizer.

    Example: quadric export runs/digits-eigen-k9-s0 -o model.onnx
    """
    if out.suffix == ".onnx":
        require("onnx", "quadric export to .onnx")
    from quadric.exporting.deploying import check_format, deploy, deployment_table

    check_format(out, int8)
    check_writable("--out", out)
    if options.is_run(source, model, input, set_):
        require("train", "quadric export of a run")
        from quadric.train.exported_run import export_translation, from_run, is_translation

        if is_translation(source):
            if int8:
                raise InputError("int8 is for convolutional networks: leave --int8 out")
            written = export_translation(source, out, opset, code or [])
            text = "\n".join(["written, and compared with the network:", *written["files"]])
            options.show(text, written, json_file)
            return
        what = from_run(source, code or [], **options.environment(data_dir))
    else:
        from quadric.models.weight_files import parse_options, saved_network

        what = saved_network(source, model, input, parse_options(set_ or []), code or [])
    result = deploy(
        what,
        out,
        int8=int8,
        calibrate_on=calibration,
        max_drop=max_drop,
        opset=opset,
        threads=threads,
        tell=say,
    )
    options.show(deployment_table(result), result, json_file)

"""The command `quadric encrypted`."""

from __future__ import annotations

from pathlib import Path

import typer
from typer import Argument, Option

from quadric.cli import options
from quadric.errors import InputError
from quadric.support.extras import require


def encrypted(
    step: str = Argument(help="check, or compile, which also makes the keys."),
    source: Path = Argument(help="A run directory, or a file of quadric.save with --model."),
    out: Path | None = Option(None, "--out", "-o", help="The folder for compile."),
    packing: str = Option("one", help="one answer soon, or many answers cheaply."),
    security: int = Option(128, help="Bits, by the standard's table: 128, 192 or 256."),
    samples: int = Option(512, help="Training inputs on which ranges are measured.", min=1),
    model: str | None = Option(
        None, help="The network of a file: of quadric.models, or module:factory."
    ),
    input: options.Inputs = None,
    set_: options.NetworkOptions = None,
    data_dir: options.DataDir = None,
    code: options.Code = None,
    json_file: options.JsonFile = None,
) -> None:
    """Say whether a network can be computed under encryption, and make the two ends that do it.

    check names each part that is no polynomial with its remedy; else depth, levels, rotations,
    sizes of keys and messages, ranges and the expected error. Its exit code is 1 if there is such a
    part. compile writes OUT/client, which holds the secret key, and OUT/server, which does not.

    Example: quadric encrypted check runs/mnist-encrypted-square-s0
    """
    import torch

    from quadric import encrypted as room

    if step not in ("check", "compile"):
        raise InputError(f"the step must be check or compile, got {step!r}: choose one")
    if (out is None) == (step == "compile"):
        raise InputError("--out is the folder of compile, and of compile alone: name one for it")
    if options.is_run(source, model, input, set_):
        require("train", "quadric encrypted on a run")
        from quadric.train.exported_run import from_run

        what = from_run(source, code or [], **options.environment(data_dir))
    else:
        from quadric.models.weight_files import parse_options, saved_network

        what = saved_network(source, model, input, parse_options(set_ or []), code or [])
    if what.calibration is None:
        size = (samples, *what.inputs[0].shape[1:])
        data = torch.randn(size, generator=torch.Generator().manual_seed(0))
    else:
        data = torch.cat(what.calibration(samples))
    report = room.check(what.network, data, packing=packing, security=security)
    options.show(report, report.to_dict(), json_file)
    if not report.ok:
        raise typer.Exit(1)
    if out is not None:
        client, server = room.compile(what.network, data, packing=packing, security=security)
        out.mkdir(parents=True, exist_ok=True)
        client.save(out / "client")
        server.save(out / "server")

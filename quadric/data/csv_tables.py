"""A user's table for training: a CSV or Parquet file, prepared as the estimators prepare it.

Holes are filled, categories become columns of 0 and 1, dates become numbers. All of this is learned
from the training rows alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from quadric.data.batches import stratified_split
from quadric.data.table_files import read_table
from quadric.data.tables import TableData, mean_and_deviation
from quadric.data.user_dataset import UserDataset, UserSamples
from quadric.data.user_table import make_table
from quadric.support.extras import load_extra


def load(
    file: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    target: str | None = None,
    task: str | None = None,
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    delimiter: str | None = None,
    rows: int | None = None,
    test: float = 0.2,
    seed: int = 0,
) -> TableData | UserDataset:
    """Reads a table and splits off test rows."""
    path = Path(file) if data_dir is None else Path(data_dir) / file
    load_extra("sklearn", "a table from a file", "tables")
    frame = read_table(str(path), delimiter=delimiter, rows=rows)
    table = make_table(path.stem, frame, target, task=task, drop=drop, categories=categories)
    from quadric.data.preparation import TablePreparation

    names: list[str] = []
    if table.task == "classification":
        labels = table.target.astype("category")
        names = list(labels.cat.categories)
        targets = torch.tensor(labels.cat.codes.to_numpy(), dtype=torch.int64)
    else:
        targets = torch.tensor(table.target.to_numpy()).float()[:, None]
    strata = targets if names else torch.zeros(len(targets), dtype=torch.int64)
    held, kept = stratified_split(strata, test, seed)
    preparation = TablePreparation()
    inputs, learned = table.inputs.iloc[kept.numpy()], targets[kept].numpy()
    train_inputs = torch.tensor(preparation.fit_transform(inputs, learned))
    test_inputs = torch.tensor(preparation.transform(table.inputs.iloc[held.numpy()]))
    columns = tuple(preparation.names_)
    if not names:
        x, y = (train_inputs.float(), targets[kept]), (test_inputs.float(), targets[held])
        return TableData(file, *x, *y, columns, str(table.target.name))
    # Before they are rounded to float32.
    statistics = mean_and_deviation(train_inputs.numpy())
    mean, deviation = (torch.tensor(values).to(train_inputs) for values in statistics)
    train, held_out = (
        UserSamples(((inputs - mean) / deviation).float(), targets[index])
        for inputs, index in ((train_inputs, kept), (test_inputs, held))
    )
    return UserDataset(file, train, held_out, len(names))

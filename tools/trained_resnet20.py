"""The published linear ResNet-20 as a network to start from: conversion, then fine-tuning.

    quadric train cifar10-resnet20-short --import tools/trained_resnet20.py \\
        --model trained_resnet20:network --neuron eigen --set init=linear --epochs 2 --lr 0.01
"""

from torch import nn

from quadric import models


def network() -> nn.Module:
    """The network, with the weights that come with the package."""
    return models.create("resnet20", pretrained="cifar10-quick")
